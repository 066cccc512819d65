"""What tests of several modules here need."""

import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOM_BYTES = 2 << 30


@pytest.fixture
def little_room() -> Iterator[None]:
    """Whoever asks for absurd memory is refused it, which is a failure."""
    (now,) = re.findall(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text("utf-8"))
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (int(now) * 1024 + ROOM_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
