"""Answers that many ask for and that stay as they are: made once, and kept within a limit of memory."""

from collections.abc import Hashable

ENTRY_BYTES = 512
"""What a key and its place in the table take at most, so that a crowd of small answers has an end, too."""


class KeptAnswers:
    """By what they follow from. When they take more than `most_bytes`, all are dropped and made anew as asked for."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._answers: dict[Hashable, bytes] = {}
        self._bytes = 0

    def get(self, key: Hashable) -> bytes | None:
        return self._answers.get(key)

    def keep(self, key: Hashable, answer: bytes) -> None:
        """For a key that has none yet."""
        size = len(answer) + ENTRY_BYTES
        self._bytes += size
        if self._bytes > self._most_bytes:
            self._answers.clear()
            self._bytes = size
        self._answers[key] = answer
