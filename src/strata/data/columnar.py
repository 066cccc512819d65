"""pyarrow, imported when it is first needed: `import strata.data` must work, and stay quick, without it."""

from functools import cache
from importlib import import_module
from typing import Any

from strata.errors import InvalidInput


@cache
def arrow(module: str = "") -> Any:
    """pyarrow, or one of its modules: `arrow("parquet")`."""
    try:
        return import_module(f"pyarrow.{module}" if module else "pyarrow")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        raise InvalidInput(
            "datasets are read with pyarrow, which is not there: pip install 'strata-runtime[data]'"
        ) from (error)
