import pytest

from strata.storage.mounts import Mount, caution_about, mount_of

MOUNTINFO = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /dev/shm rw,nosuid - tmpfs tmpfs rw
30 22 0:40 / /mnt/data rw - ext4 /dev/sdb1 rw
31 22 0:41 / /mnt/data rw shared:9 master:1 - nfs4 server:/export rw,vers=4.2
32 22 0:42 / /mnt/with\040space rw - fuse.s3fs s3fs rw
this is no mount
"""


@pytest.mark.parametrize(
    ("folder", "point", "kind"),
    [
        ("/", "/", "ext4"),
        ("/home/me", "/", "ext4"),
        ("/dev/shm", "/dev/shm", "tmpfs"),
        ("/dev/shm/a/b", "/dev/shm", "tmpfs"),
        ("/dev/shmem", "/", "ext4"),
        ("/mnt/data/run", "/mnt/data", "nfs4"),
        ("/mnt/with space/x", "/mnt/with space", "fuse.s3fs"),
    ],
)
def test_the_innermost_and_latest_mount_holds_a_folder(folder: str, point: str, kind: str) -> None:
    mount = mount_of(folder, MOUNTINFO)
    assert mount is not None
    assert (mount.point, mount.kind) == (point, kind)


def test_a_mount_says_what_is_mounted() -> None:
    assert mount_of("/mnt/data", MOUNTINFO) == Mount("/mnt/data", "nfs4", "server:/export")
    assert mount_of("/home", "") is None


@pytest.mark.parametrize(
    ("kind", "said"),
    [("tmpfs", "memory"), ("nfs4", "network"), ("fuse.sshfs", "network"), ("overlay", "container"), ("ext4", "")],
)
def test_what_should_be_known_of_a_filesystem_is_said(kind: str, said: str) -> None:
    caution = caution_about(kind)
    assert said in caution
    assert bool(caution) == bool(said)
