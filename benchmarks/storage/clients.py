"""Clients of S3 that move the same bytes: Strata, the library under it, and Amazon's own."""

import asyncio
import io
from collections.abc import Callable
from typing import Any, NamedTuple

import obstore
from obstore.store import S3Store

from benchmarks.storage.turns import dropped
from strata.storage.backend import MIB, StorageOptions
from strata.storage.direct import Block
from strata.storage.s3 import S3Storage

REGION = "us-east-1"
PIECE_BYTES = 4 * MIB
"""What a streaming writer is given at a time."""


class Server(NamedTuple):
    endpoint: str
    bucket: str
    key: str
    secret: str


class Setting(NamedTuple):
    """How an upload is cut up."""

    part_bytes: int
    concurrency: int

    def __str__(self) -> str:
        return f"{self.part_bytes // MIB} MiB × {self.concurrency}"


SETTINGS = (Setting(8 * MIB, 4), Setting(8 * MIB, 10), Setting(16 * MIB, 8), Setting(32 * MIB, 4))
"""Tried for the others, which then run with their best. Strata runs with its defaults."""

Client = Callable[[Server, Setting], "Transfers"]


class Transfers(NamedTuple):
    """What a client does, ready to be called again and again. What comes down is dropped, not given back."""

    up: Callable[[Block], object]
    down: Callable[[], object]


def strata_storage(server: Server, options: StorageOptions | None = None) -> S3Storage:
    return S3Storage(
        server.bucket,
        REGION,
        endpoint=server.endpoint,
        access_key_id=server.key,
        secret_access_key=server.secret,
        options=options,
    )


def strata_transfers(storage: S3Storage, loop: asyncio.Runner) -> Transfers:
    return Transfers(
        lambda data: loop.run(storage.write("strata", data)),
        lambda: loop.run(dropped(storage.read("strata"))),
    )


async def stream(storage: S3Storage, path: str, data: Block) -> None:
    async with storage.open_writer(path) as writer:
        for start in range(0, len(data), PIECE_BYTES):
            await writer.write(data[start : start + PIECE_BYTES])


def obstore_client(loop: asyncio.Runner) -> Client:
    """The bare library, which reads in one request; made into `bytes`, since that is what the others give."""

    def transfers(server: Server, setting: Setting) -> Transfers:
        store = S3Store(
            server.bucket,
            region=REGION,
            endpoint=server.endpoint,
            access_key_id=server.key,
            secret_access_key=server.secret,
            client_options={"allow_http": True},
        )

        async def put(data: Block) -> None:
            part_bytes, lanes = setting
            await obstore.put_async(store, "obstore", data.data, chunk_size=part_bytes, max_concurrency=lanes)

        async def get() -> None:
            bytes(await (await obstore.get_async(store, "obstore")).bytes_async())

        return Transfers(lambda data: loop.run(put(data)), lambda: loop.run(get()))

    return transfers


def boto3_client(server: Server, setting: Setting) -> Transfers:
    """Amazon's, made to sign what it sends as the others do, so that all do the same work."""
    import boto3
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config

    config = Config(
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=setting.concurrency + 2,
        s3={"payload_signing_enabled": True, "addressing_style": "path"},
    )
    client: Any = boto3.client(
        "s3",
        REGION,
        endpoint_url=server.endpoint,
        aws_access_key_id=server.key,
        aws_secret_access_key=server.secret,
        config=config,
    )
    transfer = TransferConfig(
        multipart_threshold=setting.part_bytes,
        multipart_chunksize=setting.part_bytes,
        max_concurrency=setting.concurrency,
    )

    def put(data: Block) -> None:
        client.upload_fileobj(io.BytesIO(data.data), server.bucket, "boto3", Config=transfer)

    def get() -> None:
        client.download_fileobj(server.bucket, "boto3", io.BytesIO(), Config=transfer)

    return Transfers(put, get)
