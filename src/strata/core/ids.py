"""What may be called what, and which numbers are sizes: the checks every edge of Strata shares."""

import re
from collections.abc import Callable, Collection, Mapping
from math import inf, isfinite
from numbers import Real
from typing import Any, TypeVar

from strata.errors import InvalidInput

Call = TypeVar("Call", bound=Callable[..., Any])

ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_ID = re.compile(ID_PATTERN)

_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line separators, marks that change the direction of text, and halves of characters."""

DEFAULT_JOB = "default"
"""The job of a run that says no job_id."""

MAX_NAME_CHARS = 256
MAX_NUMBER = 2**53 - 1
"""Sample counts, steps and epochs stay below: every reader holds them exactly, also one whose numbers are floats, such
as a page that reads JSON."""
MAX_COUNT = 2**63 - 1
"""No count that is stored is larger, whichever version stored it."""


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


def advice_on_default(job: str) -> str:
    """What to do where two runs met that have one job; nothing for a job that somebody named."""
    if job != DEFAULT_JOB:
        return ""
    return f". All runs without a job_id share job {job!r}: if these are two runs, give each its own job_id"


def check_name(value: object, what: str) -> str:
    """A name that people choose, such as val/loss: any text of one line; or InvalidInput."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a string, not {type(value).__name__}")
    if not 0 < len(value) <= MAX_NAME_CHARS or not value.isprintable():
        raise InvalidInput(f"{what} must be 1 to {MAX_NAME_CHARS} printable characters, not {value[:140]!r}")
    return value


def check_plain(value: str, what: str) -> str:
    """The text itself, which may be empty; InvalidInput that names its first character that a terminal would obey."""
    found = _OBEYED.search(value)
    if found is not None:
        character = f"U+{ord(found[0]):04X} as character {found.start() + 1}"
        raise InvalidInput(
            f"{what} has {character}: {value[:140]!r}. Leave out control characters, line separators and marks that "
            "change the direction of text"
        )
    return value


def check_int(value: object, what: str, *, least: int = 0, most: int = MAX_NUMBER) -> int:
    """The number itself, or InvalidInput. A bool is not a number, and neither is 3.0: guessing hides mistakes."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{what} must be an integer, not {type(value).__name__} ({value!r})")
    if not least <= value <= most:
        open_ended = f"at least {least}" if value < least else f"at most {most}"
        bounds = open_ended if most in (MAX_NUMBER, MAX_COUNT) else f"between {least} and {most}"
        raise InvalidInput(f"{what} must be {bounds}, not {value}")
    return value


def check_seconds(value: Any, what: str, *, most: float = inf, or_zero: bool = False) -> None:
    """How long something may take, above 0; or InvalidInput. Infinity is for as long as it takes."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not (0 < value <= most or (or_zero and value == 0)):
        least = "of at least 0" if or_zero else "above 0"
        bounds = f"{least} and at most {most:g}" if most < inf else least
        raise InvalidInput(f"{what} must be a number of seconds {bounds}, not {_shown(value)}")


def check_text(value: object, what: str) -> str:
    """The text itself, or InvalidInput."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a string, not {_shown(value)}")
    return value


def check_texts(**given: object) -> None:
    """InvalidInput unless each is text, or None. It may be a secret: the error does not show it."""
    for what, value in given.items():
        if value is not None and not isinstance(value, str):
            raise InvalidInput(f"{what} must be a string, not {type(value).__name__}")


def check_instance(value: object, kind: type, what: str) -> None:
    """InvalidInput unless it is a `kind`, or None."""
    if value is not None and not isinstance(value, kind):
        raise InvalidInput(f"{what} must be {kind.__name__}(...), not {_shown(value)}")


def check_path(value: object, what: str) -> str:
    """A path as text; or InvalidInput."""
    how = getattr(type(value), "__fspath__", None)
    found = value if how is None else how(value)
    if not isinstance(found, str) or not found or "\0" in found:
        raise InvalidInput(f"{what} must be a path, not {_shown(value)}")
    return found


def check_callable(value: Call, what: str) -> Call:
    """What is to be called later: an error that comes now names it."""
    if not callable(value):
        raise InvalidInput(f"{what} must be a function, not {_shown(value)}")
    return value


def check_choice(value: object, what: str, choices: Collection[str]) -> None:
    """One of a few words, or InvalidInput that tells them."""
    if not isinstance(value, str) or value not in choices:
        *others, last = (f'"{each}"' for each in choices)
        told = f"{', '.join(others)} or {last}" if others else last
        shown = repr(value[:80]) if isinstance(value, str) else _shown(value)
        raise InvalidInput(f"{what} must be {told}, not {shown}")


def check_mapping(value: object, what: str) -> None:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{what} must be a dict, not {_shown(value)}")


def _shown(value: object) -> str:
    return f"{type(value).__name__} ({repr(value)[:80]})"


def check_finite(value: float, what: str) -> float:
    """The number itself, or InvalidInput: not every reader has a word for infinity, and for what is no number."""
    if not isfinite(value):
        raise InvalidInput(f"{what} must be a finite number, not {value}")
    return value


def check_bool(value: object, what: str) -> bool:
    """The flag itself, or InvalidInput."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} must be True or False, not {type(value).__name__} ({value!r})")
    return value
