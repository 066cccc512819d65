"""Disks of their own, whose power can be cut, and that can be full. Where nobody may mount, the tests skip."""

import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

SHUTDOWN, WITHOUT_FLUSHING = 0x8004587D, 2


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"missing component: the right to mount ({done.stderr.strip()})")


class Disk:
    """An ext4 filesystem in a file, whose power can be cut."""

    def __init__(self, folder: Path) -> None:
        self.image, self.path = folder / "disk.img", folder / "disk"
        self.path.mkdir()
        if not shutil.which("mkfs.ext4"):
            pytest.skip("missing component: mkfs.ext4")
        with self.image.open("wb") as image:
            image.truncate(96 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self.image)], check=True)
        mount("-o", "loop", str(self.image), str(self.path))

    def cut_power(self) -> None:
        """What was not synced is gone, as in life."""
        fd = os.open(self.path, os.O_RDONLY)
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING))
        os.close(fd)

    def power_up(self) -> None:
        self.unmount()
        mount("-o", "loop", str(self.image), str(self.path))

    def unmount(self) -> None:
        for _ in range(50):
            if subprocess.run(["umount", str(self.path)], capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.1)
        pytest.fail("the disk is still in use")
