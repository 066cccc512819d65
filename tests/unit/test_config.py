"""Settings: who wins, where a value came from, and that a mistake is told where it was made."""

from pathlib import Path

import pytest

from strata.config import MASK, SETTINGS, Config
from strata.errors import InvalidInput


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def source(config: Config, name: str) -> str:
    return next(value.source for value in config.values() if value.setting.name == name)


def test_flags_win_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    (tmp_path / "strata.toml").write_text('job_id = "file"\nhttp_port = 1\n[coordinator]\nlease_seconds = 20\n')
    environment = {"STRATA_JOB_ID": "environment", "STRATA_HTTP_PORT": "2"}
    config = Config({"job_id": "flag"}, environment)
    assert (config["job_id"], source(config, "job_id")) == ("flag", "flag")
    assert (config["http_port"], source(config, "http_port")) == (2, "environment: STRATA_HTTP_PORT")
    assert (config["coordinator.lease_seconds"], source(config, "coordinator.lease_seconds")) == (
        20.0,
        "file: strata.toml",
    )
    assert (config["coordinator.listen"], source(config, "coordinator.listen")) == ("127.0.0.1:50051", "default")


def test_prefixed_names_win_over_unprefixed_ones() -> None:
    config = Config({}, {"COORDINATOR_URL": "a:1", "STRATA_COORDINATOR_URL": "b:2"})
    assert config["coordinator_url"] == "b:2"
    assert Config({}, {"COORDINATOR_URL": "a:1"})["coordinator_url"] == "a:1"
    both = {"STORAGE_BACKEND": "s3", "STRATA_STORAGE_BACKEND": "gcs"}
    assert Config({}, both)["storage.backend"] == "gcs"


@pytest.mark.parametrize(
    ("environment", "rank", "world_size"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, 3, 8),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, 3, 8),
        ({"JOB_COMPLETION_INDEX": "0"}, 0, None),
        ({}, None, None),
    ],
)
def test_launchers_names_are_known(environment: dict[str, str], rank: int | None, world_size: int | None) -> None:
    config = Config({}, environment)
    assert (config["rank"], config["world_size"]) == (rank, world_size)


def test_secrets_are_never_shown() -> None:
    secrets = {"STRATA_TOKEN": "do-not-show-this", "AWS_SECRET_ACCESS_KEY": "nor-this", "AWS_ACCESS_KEY_ID": "nor-that"}
    addresses = {"AWS_ENDPOINT_URL": "http://me:not-this@host:1", "COORDINATOR_URL": "http://me:not-this@host:1"}
    config = Config({}, secrets | addresses)
    shown = " ".join(value.shown for value in config.values())
    assert not any(secret in shown for secret in [*secrets.values(), "not-this"])
    assert shown.count("http://***@host:1") == 2
    assert shown.count(MASK) == 3
    assert config["token"] == "do-not-show-this"


def test_an_empty_variable_says_nothing() -> None:
    assert Config({}, {"STRATA_JOB_ID": ""})["job_id"] == "default"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('jobid = "x"', "'jobid', which is no setting. Did you mean 'job_id'"),
        ("[coordinator]\nlease = 3", "'coordinator.lease'"),
        ("http_port = true\n= 3", "cannot read"),
        ('http_port = "many"', "http_port cannot be 'many'.*a port is a number from 0 to 65535"),
        ('[coordinator]\nrpc = "http"', "say one of strata, grpcio"),
    ],
)
def test_a_mistake_in_the_file_is_told_where_it_is(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "strata.toml").write_text(content)
    with pytest.raises(InvalidInput, match=message) as error:
        Config({}, {})
    assert "strata.toml" in str(error.value)


def test_a_mistake_in_the_environment_names_the_variable() -> None:
    with pytest.raises(InvalidInput, match=r"rank cannot be 'x' \(in RANK\)"):
        Config({}, {"RANK": "x"})


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no configuration file .*nothing\.toml"):
        Config({}, {"STRATA_CONFIG": str(tmp_path / "nothing.toml")})
    other = tmp_path / "other.toml"
    other.write_text('job_id = "other"')
    assert Config({}, {"STRATA_CONFIG": str(other)})["job_id"] == "other"
    assert Config({}, {}, other)["job_id"] == "other"


def test_every_setting_is_told_what_it_is() -> None:
    assert all(setting.about for setting in SETTINGS)
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
