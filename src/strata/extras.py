"""Packages that come with an extra of Strata, and may be missing."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(package: str, *, module: str, extra: str) -> Iterator[None]:
    """Around the imports of `module`: where `package` is missing, the error names the extra that installs it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name != package:
            raise
        advice = f"{module} needs {package}: pip install 'strata-runtime[{extra}]'"
        raise ModuleNotFoundError(advice, name=package) from missing
