"""An answer that comes later, from somebody else than the handler: what thousands of waiting calls cost a little of."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

Tell = Callable[[Any, BaseException | None], None]


class Later:
    """Returned by the handler of a unary method, and answered or failed once, from the same loop.

    `given_up` says that nobody waits for it any more.
    """

    __slots__ = ("_outcome", "_tell", "given_up")

    def __init__(self) -> None:
        self._outcome: tuple[Any, BaseException | None] | None = None
        self._tell: Tell | None = None
        self.given_up = False

    def answer(self, response: Any, error: BaseException | None = None) -> None:
        if self._outcome is None:
            self._outcome = (response, error)
            tell, self._tell = self._tell, None
            if tell is not None:
                tell(response, error)

    def fail(self, error: BaseException) -> None:
        self.answer(None, error)

    def then(self, tell: Tell) -> None:
        """Whoever wants to know: there is one."""
        if self._outcome is None:
            self._tell = tell
        else:
            tell(*self._outcome)

    def __await__(self) -> Generator[Any, None, Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def tell(response: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(response)
            else:
                future.set_exception(error)

        self.then(tell)
        try:
            return (yield from future)
        finally:
            self.given_up = future.cancelled()
