"""What a peer may not do, and what it may not do too often."""

from strata.rpc.frames import ErrorCode
from strata.rpc.limits import Limits, Rate


class Violation(Exception):
    """The peer broke a rule; the connection ends."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class StreamViolation(Exception):
    """The peer broke a rule of one stream; that stream ends."""

    def __init__(self, stream: int, code: ErrorCode) -> None:
        super().__init__(stream, code)
        self.stream, self.code = stream, code


class Floods:
    """Things that are cheap to send and cost something to answer.

    `answered` is whether anything useful was said since; `answers` how often. Each makes good for one reset.
    """

    __slots__ = ("_empties", "_pings", "_resets", "answered", "answers")

    def __init__(self, limits: Limits) -> None:
        self._resets = Rate(limits.resets, limits.rate_seconds)
        self._pings = Rate(limits.pings, limits.rate_seconds)
        self._empties = Rate(limits.empty_frames, limits.rate_seconds)
        self.answered = False
        self.answers = 0

    def reset(self, now: float) -> None:
        """A stream, by either side: one that makes the other reset its streams is no better."""
        self._resets.forgive(self.answers)
        self.answers = 0
        if self._resets.exceeded(now):
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "too many streams were reset")

    def ping(self, now: float) -> None:
        """Or SETTINGS. Clients measure the round trip while data flows, which is fine."""
        if self.answered:
            self.answered = False
            self._pings.clear()
        if self._pings.exceeded(now):
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")  # the words that gRPC clients know

    def empty(self, now: float) -> None:
        """A frame that says nothing."""
        if self._empties.exceeded(now):
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that say nothing")
