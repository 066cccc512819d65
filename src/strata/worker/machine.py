"""What this process runs on, and what it takes of that, as it is told to the coordinator."""

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

UNIMPORTANT_PORT = 9


def address_towards(host: str) -> str:
    """Of this machine, on the way to that one; empty if there is no way. Nothing is sent."""
    try:
        family, kind, *_, where = socket.getaddrinfo(host, UNIMPORTANT_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as towards:
            towards.connect(where)
            found: str = towards.getsockname()[0]
            return found
    except OSError:
        return ""


def gpu_count() -> int:
    """Those that this process may use, as far as that is known without loading a driver."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        count: int = torch.cuda.device_count()
        return count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([each for each in visible.split(",") if each.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def memory_bytes() -> int:
    """Of the machine, or what its control group allows, where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            allowed = Path(limit).read_text("ascii").strip()
        except OSError:
            continue
        if allowed.isdigit():
            total = min(total, int(allowed))
    return total


def taken() -> dict[str, float]:
    """By this process itself, up to now, as far as its platform tells. It takes microseconds, so that each heartbeat
    can say it."""
    times = os.times()
    return {"cpu_seconds": times.user + times.system, **_resident_memory(), **_gpu_memory()}


def _resident_memory() -> dict[str, float]:
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:  # there is no such file but on Linux
        return {}
    return {"resident_memory_bytes": float(pages * os.sysconf("SC_PAGE_SIZE"))}


def _gpu_memory() -> dict[str, float]:
    """What torch has given out on all GPUs of this process, once it uses any: to ask must not be what starts CUDA. All,
    since which one is the current is the training thread's to know, and this may be another."""
    cuda = sys.modules.get("torch.cuda")
    is_initialized = getattr(cuda, "is_initialized", None)  # another thread may be importing it
    if cuda is None or is_initialized is None or not is_initialized():
        return {}
    with suppress(RuntimeError):  # a GPU that has failed is the training's to tell of
        return {"gpu_memory_bytes": float(sum(map(cuda.memory_allocated, range(cuda.device_count()))))}
    return {}
