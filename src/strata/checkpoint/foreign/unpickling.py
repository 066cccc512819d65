"""Files of `torch.save`, read by torch's own unpickler that makes nothing but tensors and plain values."""

import pickle
from collections.abc import Callable
from typing import Any

from strata.errors import InvalidInput


def unpickled(load: Callable[..., Any], name: str, advice: str) -> Any:
    """What `load` gives, which is torch.load with its file; InvalidInput for what is not safe, or not whole."""
    try:
        return load(map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InvalidInput(
            f"{name} holds more than tensors and plain values, or is damaged, and is not read: that could run code. "
            f"{advice}. ({_first_line(error)})"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise InvalidInput(f"{name} is no whole file of torch.save: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
