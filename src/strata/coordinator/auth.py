"""Who may talk to the coordinator: bearer tokens, compared in constant time, replaced while it runs.

A token comes from `STRATA_TOKEN` or from a file. A file may hold several, one on each line, and all of them are taken:
put the new one beside the old, hand it out, then take the old one away.
"""

import hmac
import os
from hashlib import blake2b
from pathlib import Path

from strata.errors import InvalidInput
from strata.logs import get_logger
from strata.rpc import Call, Interceptor, RpcError, Status
from strata.rpc.head import Head
from strata.wire.tokens import checked_token, tokens_in

logger = get_logger("strata.coordinator")

_SCHEME = "bearer "


class Tokens:
    """The tokens in force; none at all lets everybody in."""

    def __init__(self, token: str | None = None, file: Path | None = None) -> None:
        if token is not None and file is not None:
            raise InvalidInput("give a token or a file of tokens, not both")
        self._file = file
        self._seen: tuple[int, int, int] | None = None
        self._digests: list[bytes] = []
        self._told = ""
        if file is not None:
            self._seen = _stamp(file)
            self._digests = [_digest(token) for token in tokens_in(file)]
        elif token is not None:
            self._digests = [_digest(checked_token(token.strip(), "the token"))]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accept(self, authorization: str | None) -> bool:
        """Whether this header holds one of them. All are compared, so the time taken tells nothing."""
        if not self._digests:
            return True
        if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
            return False
        given = _digest(authorization[len(_SCHEME) :].strip())
        matches = [hmac.compare_digest(given, known) for known in self._digests]
        return any(matches)

    def reload(self) -> bool:
        """Read the file again if it changed; whether the tokens did. A file that is unsound changes nothing."""
        if self._file is None:
            return False
        try:
            seen = _stamp(self._file)
            if seen == self._seen:
                return False
            digests = [_digest(token) for token in tokens_in(self._file)]
        except InvalidInput as error:
            if str(error) != self._told:  # and not again each time that it is looked at
                self._told = str(error)
                logger.error("the tokens stay as they are: %s", error)
            return False
        self._seen, self._told = seen, ""
        changed, self._digests = digests != self._digests, digests
        return changed


def _stamp(file: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(file)
    except OSError as error:
        raise InvalidInput(f"cannot read the tokens in {file}: {error.strerror}") from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(token: str) -> bytes:
    return blake2b(token.encode("utf-8", "replace"), digest_size=32).digest()


class TokenCheck(Interceptor):
    """Lets in who shows a token. Health checks are asked by load balancers that have none."""

    OPEN = ("/grpc.health.v1.Health/",)

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def still_welcome(self, call: Call) -> bool:
        """Whether the caller of a long call would be let in again."""
        return self._shows_one(call.head)

    def authenticate(self, head: Head) -> object:
        if head.path.startswith(self.OPEN):
            return "anyone"
        if not self._shows_one(head):
            given = head.value("authorization")
            why = "the token is not the right one" if given else "this coordinator wants a bearer token"
            raise RpcError(Status.UNAUTHENTICATED, f"{why}: set STRATA_TOKEN to the coordinator's")
        return "holder of a token"

    def _shows_one(self, head: Head) -> bool:
        given = head.value("authorization")
        return self._tokens.accept(given if isinstance(given, str) else None)
