"""`strata coordinator`: run one, in the foreground."""

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from strata import __version__
from strata.cli.drawing import Terminal, Text
from strata.config import Config
from strata.errors import InvalidInput
from strata.logs import get_logger
from strata.texts import printable, printable_lines
from strata.wire.tokens import token_is_in_file


def coordinator(
    address: Annotated[
        str | None, typer.Argument(metavar="[HOST:PORT]", help="Where to listen for gRPC. [127.0.0.1:50051]")
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port for HTTP, on the same host. [8080]")
    ] = None,
    no_http: Annotated[bool, typer.Option("--no-http", help="Serve gRPC alone.")] = False,
    state_dir: Annotated[
        str | None, typer.Option(help="The folder of the journal, on a local disk. [strata-state]")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file of tokens, one on each line; any is taken. [what STRATA_TOKEN says]"),
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="Serve TLS with this certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="Clients must show a certificate signed by this one (PEM).")
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Listen beyond this machine without a token.")
    ] = None,
    rpc: Annotated[str | None, typer.Option(help="Which gRPC server: strata or grpcio. [strata]")] = None,
    lease_seconds: Annotated[float | None, typer.Option(help="Silence after which a worker is given up. [15]")] = None,
    heartbeat_seconds: Annotated[float | None, typer.Option(help="How often workers are told to report. [5]")] = None,
    log_format: Annotated[str | None, typer.Option(help="How the log is written: text or json. [text]")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings. [strata.toml]")] = None,
) -> None:
    """Run a coordinator: it keeps the state of training jobs, and workers meet at it."""
    flags = {
        "coordinator.listen": address,
        "http_port": http_port,
        "coordinator.state_dir": state_dir,
        "token_file": token_file,
        "coordinator.tls_certificate": tls_certificate,
        "coordinator.tls_key": tls_key,
        "coordinator.client_ca": client_ca,
        "coordinator.insecure": insecure,
        "coordinator.rpc": rpc,
        "coordinator.lease_seconds": lease_seconds,
        "coordinator.heartbeat_seconds": heartbeat_seconds,
        "coordinator.log_format": log_format,
    }
    said = Config(flags, os.environ, config)
    _set_up_logging(said["coordinator.log_format"])
    from strata.coordinator import process

    settings = _settings(said, no_http)
    process.run(settings, lambda started: announce(settings, started, said["coordinator.log_format"]))
    get_logger("strata.coordinator").info("stopped; everything acknowledged is in the journal")


def _settings(said: Config, no_http: bool) -> Any:
    from strata.coordinator.auth import Tokens
    from strata.coordinator.process import CoordinatorConfig, tls_from
    from strata.core.settings import Policy
    from strata.rpc.addresses import join_address, split_address

    if not str(said["coordinator.state_dir"]):
        raise InvalidInput("the state needs a folder: --state-dir is empty")
    listen = with_port(str(said["coordinator.listen"]))
    host = "127.0.0.1" if listen.startswith("unix:") else split_address(listen)[0]
    return CoordinatorConfig(
        listen=listen,
        http=None if no_http else join_address(host, said["http_port"]),
        state_dir=Path(said["coordinator.state_dir"]),
        tokens=Tokens(None, Path(said["token_file"])) if token_is_in_file(said) else Tokens(said["token"] or None),
        tls=tls_from(
            str(said["coordinator.tls_certificate"]),
            str(said["coordinator.tls_key"]),
            str(said["coordinator.client_ca"]),
        ),
        insecure=bool(said["coordinator.insecure"]),
        rpc=said["coordinator.rpc"],
        snapshot_after_bytes=said["coordinator.snapshot_after_bytes"],
        policy=Policy(
            lease_seconds=said["coordinator.lease_seconds"], heartbeat_seconds=said["coordinator.heartbeat_seconds"]
        ),
    )


def with_port(address: str) -> str:
    """`host` alone has the usual port."""
    if "://" in address:
        raise InvalidInput(f"give host:port to listen on, not {address!r}")
    if address.isdecimal():
        raise InvalidInput(
            f"{address} is a port and no host: say 127.0.0.1:{address}, or :{address} for every interface"
        )
    plain = not address.startswith("unix:") and address and (":" not in address or address.endswith("]"))
    return f"{address}:50051" if plain else address


def announce(settings: Any, started: Any, log_format: str) -> None:
    if log_format == "json":
        get_logger("strata.coordinator").info(
            "started",
            extra={
                "fields": {
                    "address": started.address,
                    "http": started.http,
                    "term": started.term,
                    "jobs": started.jobs,
                    "workers": started.workers,
                    "records_replayed": started.records_replayed,
                    "guard": _protection(settings),
                }
            },
        )
        return
    scheme = "http" if settings.tls is None else "https"
    found = "nothing yet: a fresh start" if not started.jobs else f"{started.jobs} jobs, {started.workers} workers"
    lines = [
        f"  gRPC    {started.address}" + (" (grpcio)" if settings.rpc == "grpcio" else ""),
        *([f"  HTTP    {scheme}://{started.http}/api/dashboard"] if started.http else []),
        f"  state   {settings.state_dir.absolute()}: {found} ({started.records_replayed} records read in "
        f"{started.seconds:.2f} s)",
        f"  guard   {_protection(settings)}",
        f"  leases  {settings.policy.lease_seconds:g} s, a heartbeat every {settings.policy.heartbeat_seconds:g} s",
        "  Ctrl-C or SIGTERM stops it in good order",
    ]
    console = Terminal(soft_wrap=True)
    console.print(Text("Strata coordinator", "bold").append(f" {__version__}, term {started.term}", "not bold"))
    for line in lines:
        console.print(line)
    sys.stdout.flush()


def _protection(settings: Any) -> str:
    guards = ["a token"] if settings.tokens else []
    if settings.tls is not None:
        guards.append("client certificates" if settings.tls.client_ca else "TLS")
    if not settings.tokens and (settings.tls is None or not settings.tls.client_ca):
        guards.append("no token: anybody who reaches it may use it")
    return ", ".join(guards)


def _set_up_logging(form: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()  # noqa: TID251 - not one of Strata's
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # noqa: TID251 - not one of Strata's


class TextLines(logging.Formatter):
    """One line for each, whoever logs; of an exception further lines, which are indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = printable(record.message)
        return super().formatMessage(record)


class _JsonLines(logging.Formatter):
    """One object on each line."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)
