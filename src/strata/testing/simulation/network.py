"""A network that loses, doubles, delays and reorders, from a seeded generator."""

from collections.abc import Callable
from random import Random
from typing import Any

from strata.testing.simulation.loop import VirtualLoop
from strata.testing.simulation.plan import Chaos


class Network:
    """Carries calls between nodes. A node that is cut off neither hears nor is heard."""

    def __init__(self, loop: VirtualLoop, rng: Random, chaos: Chaos) -> None:
        self._loop, self._random = loop, rng.random
        self._lost, self._late = chaos.lost, chaos.lost + chaos.late
        self._doubled, self._late_seconds = 1 - chaos.doubled, chaos.late_seconds
        self.cut_off: set[str] = set()
        self.sent = self.lost = self.late = self.doubled = 0

    def clear_up(self) -> None:
        """From now on lose, delay and double nothing."""
        self._lost = self._late = 0.0
        self._doubled = 1.0

    def send(self, node: str, deliver: Callable[..., None], *args: Any) -> None:
        """One message from or to this node (the coordinator is at the other end)."""
        draw = self._random()
        self.sent += 1
        if node in self.cut_off or draw < self._lost:
            self.lost += 1
        elif draw < self._late:
            self.late += 1
            self._loop.after(self._random() * self._late_seconds, deliver, *args)
        else:
            self._loop.after(0.0005 + 0.004 * draw, deliver, *args)
            if draw > self._doubled:
                self.doubled += 1
                self._loop.after(0.001 + 0.5 * self._random(), deliver, *args)
