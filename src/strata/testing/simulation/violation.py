"""What a simulation reports when a promise was broken."""


class Violation(AssertionError):
    """An invariant does not hold. `rule` is its short name; the message says what was seen."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule
