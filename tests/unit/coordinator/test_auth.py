"""Tokens: who is let in, how they are replaced, and that no message shows one."""

import logging
import os
from pathlib import Path

import pytest

from strata.coordinator.auth import TokenCheck, Tokens
from strata.coordinator.exposure import is_loopback
from strata.coordinator.process import CoordinatorConfig
from strata.errors import InvalidInput
from strata.rpc import RpcError, ServerTls
from strata.rpc.head import Head
from strata.wire.tokens import MOST_TOKENS

SECRET = "correct-horse-battery"


def test_a_token_opens_and_nothing_else_does() -> None:
    tokens = Tokens(SECRET)
    assert tokens.accept(f"Bearer {SECRET}")
    assert tokens.accept(f"bearer  {SECRET} ")
    for wrong in (
        None,
        "",
        SECRET,
        "Bearer",
        "Bearer ",
        f"Basic {SECRET}",
        f"Bearer {SECRET}x",
        f"Bearer {SECRET[:-1]}",
    ):
        assert not tokens.accept(wrong)


def test_without_a_token_everybody_is_let_in() -> None:
    assert Tokens().accept(None)
    assert not Tokens()


def test_a_file_may_hold_several_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# the old one\nfirst-token\n")
    tokens = Tokens(file=file)
    assert tokens.accept("Bearer first-token")
    assert not tokens.reload()
    file.write_text("first-token\nsecond-token\n")
    assert tokens.reload()
    assert tokens.accept("Bearer first-token")
    assert tokens.accept("Bearer second-token")
    file.write_text("second-token\n")
    os.utime(file, ns=(1, 1))
    assert tokens.reload()
    assert not tokens.accept("Bearer first-token")


@pytest.mark.parametrize("content", ["", "\n# nothing\n", "short\n", "with space inside\n", "ünïcödé-token\n"])
def test_a_file_that_is_unsound_changes_nothing(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "tokens"
    file.write_text("first-token\n")
    tokens = Tokens(file=file)
    file.write_text(content)
    with caplog.at_level(logging.ERROR):
        assert not tokens.reload()
        assert not tokens.reload()
    assert caplog.text.count("stay as they are") == 1, "once is enough"
    assert tokens.accept("Bearer first-token")
    file.unlink()
    assert not tokens.reload()
    assert tokens.accept("Bearer first-token")


@pytest.mark.parametrize("token", ["short", "with a space in it", "tab\tinside-token", "ünïcödé-token"])
def test_no_message_shows_a_token(token: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Tokens(token)
    assert token not in str(error.value)


def test_too_many_tokens_and_two_sources_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("".join(f"token-number-{number}\n" for number in range(MOST_TOKENS + 1)))
    with pytest.raises(InvalidInput, match="1 to 16 tokens"):
        Tokens(file=file)
    with pytest.raises(InvalidInput, match="not both"):
        Tokens(SECRET, file)
    with pytest.raises(InvalidInput, match="cannot read"):
        Tokens(file=tmp_path / "nothing")


def test_health_checks_need_no_token_and_everything_else_does() -> None:
    check = TokenCheck(Tokens(SECRET))
    assert check.authenticate(Head("/grpc.health.v1.Health/Check", ()))
    assert check.authenticate(Head("/strata.v1.Coordinator/Register", (("authorization", f"Bearer {SECRET}"),)))
    for path in ("/strata.v1.Coordinator/Register", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/"):
        with pytest.raises(RpcError, match=r"UNAUTHENTICATED.*STRATA_TOKEN"):
            check.authenticate(Head(path, ()))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.9.9.9:1", "unix:/tmp/x"])
def test_this_machine_alone(address: str) -> None:
    assert is_loopback(address)
    CoordinatorConfig(listen=address)


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", ":1", "10.0.0.1:1", "node-7:1"])
def test_nothing_listens_beyond_this_machine_without_a_token_unless_told_to(address: str) -> None:
    assert not is_loopback(address)
    with pytest.raises(InvalidInput, match=r"refusing to listen on .* without a token"):
        CoordinatorConfig(listen=address)
    with pytest.raises(InvalidInput, match="refusing"):
        CoordinatorConfig(http=address)
    with pytest.raises(InvalidInput, match="refusing"):
        CoordinatorConfig(listen=address, tls=ServerTls("c", "k"))
    CoordinatorConfig(listen=address, tokens=Tokens(SECRET))
    CoordinatorConfig(listen=address, insecure=True)
    CoordinatorConfig(listen=address, tls=ServerTls("c", "k", "ca"))
