"""What may be called what, and which numbers are sizes: the checks every edge of Strata shares."""

import re

from strata.errors import InvalidInput

ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_ID = re.compile(ID_PATTERN)

MAX_NAME_CHARS = 256
MAX_COUNT = 2**63 - 1
"""Sample counts, steps and epochs stay within a signed 64-bit integer, so that numpy and protobuf hold them."""


def check_id(value: object, what: str) -> str:
    """The id itself, or InvalidInput saying what is wrong with it."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a string, not {type(value).__name__}")
    if not _ID.fullmatch(value):
        raise InvalidInput(
            f"{what} {value[:140]!r} is not a valid id: use 1 to 128 letters, digits, '.', '_' or '-', "
            "starting with a letter or digit"
        )
    return value


def check_name(value: object, what: str) -> str:
    """A name that people choose, such as val/loss: any text of one line; or InvalidInput."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a string, not {type(value).__name__}")
    if not 0 < len(value) <= MAX_NAME_CHARS or not value.isprintable():
        raise InvalidInput(f"{what} must be 1 to {MAX_NAME_CHARS} printable characters, not {value[:140]!r}")
    return value


def check_int(value: object, what: str, *, least: int = 0, most: int = MAX_COUNT) -> int:
    """The number itself, or InvalidInput. A bool is not a number, and neither is 3.0: guessing hides mistakes."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{what} must be an integer, not {type(value).__name__} ({value!r})")
    if not least <= value <= most:
        open_ended = f"at least {least}" if value < least else f"at most {most}"
        bounds = open_ended if most == MAX_COUNT else f"between {least} and {most}"
        raise InvalidInput(f"{what} must be {bounds}, not {value}")
    return value


def check_bool(value: object, what: str) -> bool:
    """The flag itself, or InvalidInput."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} must be True or False, not {type(value).__name__} ({value!r})")
    return value
