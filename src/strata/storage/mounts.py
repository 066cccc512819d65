"""Which filesystem a folder is on, as Linux tells it, and what that means for what is kept there."""

import os
import re
from dataclasses import dataclass

MOUNTINFO = "/proc/self/mountinfo"

IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
NETWORK = {
    *(
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
    ),
    *("pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"),
}

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A filesystem: where it is mounted, of which type, and what is mounted there."""

    point: str
    kind: str
    source: str


def mount_of(folder: str, mountinfo: str) -> Mount | None:
    """The mount that holds an absolute path without links, given what /proc/self/mountinfo says."""
    found: Mount | None = None
    for line in mountinfo.splitlines():
        mount = _parsed(line)
        # Of two at one place the later one covers the earlier.
        if mount and _holds(mount.point, folder) and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def read_mountinfo() -> str | None:
    """None where there is no such file: only Linux has it."""
    try:
        with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return None


def caution_about(kind: str) -> str:
    """What should be known before anything is kept on such a filesystem; empty if nothing."""
    if kind in IN_MEMORY:
        return "this is memory: nothing here survives a reboot, and it takes memory from the job. Use a disk"
    if kind == "overlay":
        return "this is a container's own layer, which goes with the container: mount a volume for what must stay"
    if kind in NETWORK or kind.startswith("fuse."):
        return (
            "this may be a network filesystem: its server decides how durable writes and how safe locks are, and "
            "every machine must mount it alike"
        )
    return ""


def _parsed(line: str) -> Mount | None:
    left, dash, right = line.partition(" - ")
    fields, about = left.split(" "), right.split(" ")
    if not dash or len(fields) < 5 or len(about) < 2:
        return None
    return Mount(_unescaped(fields[4]), about[0], _unescaped(about[1]))


def _unescaped(text: str) -> str:
    """The kernel writes a space as \\040, and so on."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)


def _holds(point: str, folder: str) -> bool:
    return folder == point or folder.startswith(point.rstrip(os.sep) + os.sep)
