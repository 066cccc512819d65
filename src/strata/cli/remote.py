"""How commands reach a coordinator: its HTTP API for what is shown, gRPC for what is done."""

import json
import os
import ssl
from collections.abc import Iterator
from http.client import HTTPException
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

import typer

from strata.config import Config
from strata.errors import InvalidInput, StrataError
from strata.rpc.addresses import join_address
from strata.wire.addresses import HERE, parse_url
from strata.wire.tokens import token_of

TIMEOUT_SECONDS = 10.0
SILENCE_SECONDS = 30.0

Url = Annotated[
    str | None,
    typer.Option("--coordinator", metavar="HOST:PORT", help="Where it listens for gRPC [COORDINATOR_URL]."),
]
HttpPort = Annotated[int | None, typer.Option(min=1, max=65535, help="Its port for HTTP [STRATA_HTTP_PORT].")]
JobOption = Annotated[str | None, typer.Option("--job", help="Only this job.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="Show at most so many.")]


def configured(url: str | None, http_port: int | None) -> Config:
    return Config({"coordinator_url": url, "http_port": http_port}, os.environ)


class Api:
    """The HTTP API of the coordinator that the configuration names; of several addresses, the first that answers."""

    def __init__(self, config: Config) -> None:
        url = parse_url(config["coordinator_url"] or HERE)
        scheme = "https" if url.tls else "http"
        self._bases = [f"{scheme}://{join_address(host, config['http_port'])}" for host in url.hosts]
        self.base = self._bases[0]
        self._token = token_of(config)
        self._context = _context(config) if url.tls else None

    def get(self, path: str, **parameters: object) -> Any:
        """What the API answers; StrataError with its words if that is no."""
        with self._opened(path, parameters, TIMEOUT_SECONDS) as answer:
            return json.loads(answer.read())

    def pages(self, path: str, limit: int, **parameters: object) -> list[Any]:
        """All items of a list, but at most `limit`."""
        items: list[Any] = []
        cursor: str | None = ""
        while cursor is not None and len(items) < limit:
            page = self.get(path, cursor=cursor, limit=min(1000, limit - len(items)), **parameters)
            items.extend(page["items"])
            cursor = page["next_cursor"]
        return items

    def stream(self, path: str, **parameters: object) -> Iterator[tuple[str, Any]]:
        """Server-sent events: the kind of each, and its content."""
        with self._opened(path, parameters, SILENCE_SECONDS) as answer:
            kind = ""
            try:
                for line in answer:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    if name == "event":
                        kind = value
                    elif name == "data":
                        yield kind, json.loads(value)
            except (OSError, HTTPException) as error:
                raise StrataError(f"the coordinator at {self.base} went away: {error}") from error

    def _opened(self, path: str, parameters: dict[str, object], timeout: float) -> Any:
        given = {name: value for name, value in parameters.items() if value not in (None, "")}
        why: object = ""
        for base in self._bases:
            self.base = base
            try:
                request = Request(f"{base}{quote(path)}?{urlencode(given)}")
                if self._token:
                    request.add_header("authorization", f"Bearer {self._token}")
                return urlopen(request, timeout=timeout, context=self._context)
            except HTTPError as error:
                raise StrataError(_told(error)) from error
            except (OSError, HTTPException, ValueError) as error:
                reason = getattr(error, "reason", error)
                why = getattr(reason, "strerror", None) or reason
        tls = "" if self._context else ". If it serves TLS, its address begins with https://"
        raise StrataError(
            f"cannot reach the coordinator's HTTP API at {', '.join(self._bases)}: {why}. "
            f"Is it running? See COORDINATOR_URL and STRATA_HTTP_PORT{tls}"
        )


def _context(config: Config) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config["tls_ca"] or None)
        if config["tls_certificate"]:
            context.load_cert_chain(config["tls_certificate"], config["tls_key"] or None)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            f"cannot use tls_ca, tls_certificate and tls_key: {error}. They must be PEM files"
        ) from error
    return context


def _told(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read())["message"])
    except (ValueError, KeyError, OSError):
        return f"the coordinator answered {error.code} {error.reason}"
