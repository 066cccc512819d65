"""What this process runs on, as it is told to the coordinator: its address, its GPUs, its memory."""

import os
import socket
import sys
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
