"""The tokens that people write down for a coordinator, as it and its callers read them."""

from pathlib import Path

from strata.config import Config
from strata.errors import InvalidInput

LEAST_CHARS = 8
MOST_TOKENS = 16


def tokens_in(file: Path) -> list[str]:
    """One on each line; what begins with # is a remark."""
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read the tokens in {file}: {error}") from error
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens or len(tokens) > MOST_TOKENS:
        raise InvalidInput(f"{file} must hold 1 to {MOST_TOKENS} tokens, one on each line, not {len(tokens)}")
    return [checked_token(token, f"a token in {file}") for token in tokens]


def checked_token(token: str, what: str) -> str:
    """Its value is never part of a message."""
    if len(token) < LEAST_CHARS:
        raise InvalidInput(f"{what} has {len(token)} characters: give at least {LEAST_CHARS}, better 32 random ones")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInput(f"{what} must be printable ASCII without spaces")
    return token


def token_is_in_file(config: Config) -> bool:
    """Which of the two is meant: whoever was said with more weight, and the token itself where that is equal."""
    return bool(config["token_file"]) and (not config["token"] or config.rank("token_file") > config.rank("token"))


def token_of(config: Config) -> str | None:
    """The token to show: the first one, where it comes from a file."""
    if not token_is_in_file(config):
        return config["token"] or None
    return tokens_in(Path(config["token_file"]))[0]
