"""What is in force, and where it came from: flags, then the environment, then a TOML file, then defaults.

Read once, at the edge. `STRATA_*` names win over unprefixed ones. The file is the one that `STRATA_CONFIG` names, else
`strata.toml` in the current folder, if there is one; its tables are the parts of a setting's name before the dot.
"""

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata.core import paths
from strata.core.ids import DEFAULT_JOB, check_int
from strata.errors import InvalidInput

FILE = "strata.toml"
MASK = "********"


def _text(said: str) -> str:
    return said


def _flag(said: str) -> bool:
    if said.lower() in ("1", "true", "yes", "on"):
        return True
    if said.lower() in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("say true or false")


def _port(said: str) -> int:
    if not said.isascii() or not said.isdecimal() or int(said) > 65535:
        raise ValueError("a port is a number from 0 to 65535")
    return int(said)


def _choice(*choices: str) -> Callable[[str], str]:
    def choice(said: str) -> str:
        if said not in choices:
            raise ValueError(f"say one of {', '.join(choices)}")
        return said

    return choice


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name in a file, the names in the environment that are looked for in this order, and what it is
    if nobody says."""

    name: str
    default: Any
    about: str
    environment: tuple[str, ...] = ()
    parse: Callable[[str], Any] = _text
    secret: bool = False

    @property
    def names_in_environment(self) -> tuple[str, ...]:
        own = "STRATA_" + self.name.replace(".", "_").upper()
        return tuple(dict.fromkeys((own, *self.environment)))


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "coordinator_url",
        "",
        "where the coordinator is: host:port, http(s)://host:port, or several with commas between",
        ("COORDINATOR_URL",),
    ),
    Setting("http_port", 8080, "the coordinator's port for HTTP", (), _port),
    Setting("job_id", DEFAULT_JOB, "the job, the same over restarts; all runs without one share a job"),
    Setting("token", "", "the bearer token that the coordinator wants", secret=True),
    Setting("token_file", "", "a file with that token; a coordinator takes any of those in it"),
    Setting("tls_ca", "", "PEM file: whom to trust when the coordinator is at an https:// address"),
    Setting("tls_certificate", "", "PEM file: whom we are, where the coordinator wants to know"),
    Setting("tls_key", "", "PEM file: its key"),
    Setting("worker_id", "", "this worker's name", ("WORKER_ID",)),
    Setting(
        "rank",
        None,
        "this worker's rank",
        ("RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK"),
        int,
    ),
    Setting(
        "world_size", None, "how many workers there are", ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"), int
    ),
    Setting("coordinator.listen", "127.0.0.1:50051", "where the coordinator listens for gRPC"),
    Setting("coordinator.state_dir", "strata-state", "the folder of the coordinator's journal"),
    Setting("coordinator.rpc", "strata", "which gRPC server: strata or grpcio", (), _choice("strata", "grpcio")),
    Setting("coordinator.insecure", False, "listen beyond this machine without a token", (), _flag),
    Setting("coordinator.tls_certificate", "", "PEM file: serve TLS with this certificate"),
    Setting("coordinator.tls_key", "", "PEM file: its key"),
    Setting("coordinator.client_ca", "", "PEM file: clients must show a certificate signed by this one"),
    Setting("coordinator.lease_seconds", 15.0, "silence after which a worker is given up", (), float),
    Setting("coordinator.heartbeat_seconds", 5.0, "how often workers are told to report", (), float),
    Setting(
        "coordinator.snapshot_after_bytes",
        8 << 20,
        "of journal, at least, before the state is written whole",
        (),
        int,
    ),
    Setting("coordinator.log_format", "text", "how the log is written: text or json", (), _choice("text", "json")),
    Setting(
        "storage.backend",
        "local",
        "where checkpoints go: local, s3, gcs or azure",
        ("STRATA_STORAGE_BACKEND", "STORAGE_BACKEND"),
        _choice("local", "s3", "gcs", "azure"),
    ),
    Setting(
        "storage.local_path",
        "/tmp/strata/checkpoints",
        "the folder for the local backend; the default is lost when the machine clears /tmp",
        ("STRATA_LOCAL_STORAGE_PATH", "LOCAL_STORAGE_PATH"),
    ),
    Setting("storage.bucket", "", "the bucket for the others", ("STRATA_CHECKPOINT_BUCKET", "CHECKPOINT_BUCKET")),
    Setting("aws.region", "us-east-1", "the region of S3", ("AWS_REGION", "AWS_DEFAULT_REGION")),
    Setting("aws.endpoint_url", "", "another server that speaks S3", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")),
    Setting("aws.access_key_id", "", "the access key of S3", ("AWS_ACCESS_KEY_ID",), secret=True),
    Setting("aws.secret_access_key", "", "its secret", ("AWS_SECRET_ACCESS_KEY",), secret=True),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Value:
    """What a setting is, and who said so."""

    setting: Setting
    value: Any
    source: str

    @property
    def shown(self) -> str:
        """For people: secrets are masked, and what an address holds of them."""
        if self.value in (None, ""):
            return ""
        return MASK if self.setting.secret else paths.shown(str(self.value))


class Config:
    """Every setting with its value, as they were when this was made."""

    def __init__(
        self,
        flags: Mapping[str, Any],
        environment: Mapping[str, str],
        file: Path | None = None,
    ) -> None:
        self.file = _found(environment, file)
        said = {} if self.file is None else _read(self.file)
        self._values = {
            setting.name: _decided(setting, flags.get(setting.name), environment, said, self.file)
            for setting in SETTINGS
        }

    def __getitem__(self, name: str) -> Any:
        return self._values[name].value

    def rank(self, name: str) -> int:
        """How much weight the source of a setting has: a flag most, a default none."""
        source = self._values[name].source
        return next(
            (weight for weight, kind in enumerate(("default", "file", "environment", "flag")) if kind in source), 0
        )

    def values(self) -> list[Value]:
        return list(self._values.values())


def _decided(
    setting: Setting, flag: Any, environment: Mapping[str, str], file: Mapping[str, Any], path: Path | None
) -> Value:
    if flag is not None:
        return Value(setting, _parsed(setting, str(flag), "as a flag"), "flag")
    for name in setting.names_in_environment:
        if environment.get(name):
            return Value(setting, _parsed(setting, environment[name], f"in {name}"), f"environment: {name}")
    if setting.name in file:
        return Value(setting, _parsed(setting, str(file[setting.name]), f"in {path}"), f"file: {path}")
    return Value(setting, setting.default, "default")


def _parsed(setting: Setting, said: str, where: str) -> Any:
    try:
        return setting.parse(said)
    except ValueError as error:
        shown = MASK if setting.secret else repr(said)
        why = str(error) if setting.parse not in (int, float) else "a number is wanted"
        raise InvalidInput(f"{setting.name} cannot be {shown} ({where}): {why}") from error


def _found(environment: Mapping[str, str], file: Path | None) -> Path | None:
    named = file or (Path(environment["STRATA_CONFIG"]) if environment.get("STRATA_CONFIG") else None)
    if named is not None:
        if not named.is_file():
            raise InvalidInput(f"there is no configuration file {named}")
        return named
    return Path(FILE) if Path(FILE).is_file() else None


def _read(file: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"cannot read {file}: {error}") from error
    said: dict[str, Any] = {}
    for name, value in tables.items():
        said |= {f"{name}.{inner}": each for inner, each in value.items()} if isinstance(value, dict) else {name: value}
    for name in said:
        if name not in _BY_NAME:
            near = difflib.get_close_matches(name, _BY_NAME, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InvalidInput(f"{file} sets {name!r}, which is no setting.{hint} `strata config` lists them")
    return said


def place_in_world(rank: int | None, world_size: int | None, settings: Config | None) -> tuple[int, int]:
    """As it was said; else, in a job with a coordinator, as the launcher says; else alone."""
    if rank is None and settings is not None:
        rank = settings["rank"]
    if world_size is None and settings is not None:
        world_size = settings["world_size"]
    rank, world_size = 0 if rank is None else rank, 1 if world_size is None else world_size
    check_int(rank, "rank")
    check_int(world_size, "world_size", least=1)
    if rank >= world_size:
        raise InvalidInput(f"rank {rank} does not exist in a world of {world_size}")
    return rank, world_size
