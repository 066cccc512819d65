"""DCP on S3, by Amazon's own connector for PyTorch, installed on the first run into build/peers-s3."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.checkpoint_throughput.dcp import Dcp
from benchmarks.storage import BUILD
from benchmarks.storage.clients import REGION, Server

HOME = BUILD / "peers-s3"
PACKAGES = ("s3torchconnector==1.5.0", "s3torchconnectorclient==1.5.0", "tenacity")
THREADS = 4


def s3_dcp(server: Server) -> Dcp | None:
    """None, and a word about it, where it cannot be had."""
    if not _installed():
        print("DCP on S3 is left out: s3torchconnector cannot be installed here", file=sys.stderr)
        return None
    from s3torchconnector import S3ClientConfig  # type: ignore[import-not-found]
    from s3torchconnector._s3client import S3Client  # type: ignore[import-not-found]
    from s3torchconnector.dcp import S3StorageReader, S3StorageWriter  # type: ignore[import-not-found]

    os.environ |= {"AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": server.secret}
    config = S3ClientConfig(force_path_style=True)
    client = S3Client(REGION, endpoint=server.endpoint, s3client_config=config)

    def to_server(made: Any) -> Any:
        """Neither takes an address that is not Amazon's."""
        made.fs._client = client
        return made

    def where(name: str) -> str:
        return f"s3://{server.bucket}/{name}"

    def remove(name: str) -> None:
        for found in list(client.list_objects(server.bucket, name)):
            for info in found.object_info:
                client.delete_object(server.bucket, info.key)

    return Dcp(
        f"s3torchconnector, thread_count={THREADS}",
        lambda name: to_server(S3StorageWriter(REGION, where(name), s3client_config=config, thread_count=THREADS)),
        lambda name: to_server(S3StorageReader(REGION, where(name), s3client_config=config)),
        lambda name: None,
        remove,
    )


def _installed() -> bool:
    marker = HOME / "tried"
    if not marker.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        marker.touch()
        install = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*install, "--target", str(HOME), *PACKAGES], check=False)
    if not (Path(HOME) / "s3torchconnector").is_dir():
        return False
    if str(HOME) not in sys.path:
        sys.path.append(str(HOME))
    return True
