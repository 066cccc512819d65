"""The simulated checkpoint storage: part files made once, and manifests. It never forgets and never lies."""

import msgspec

from strata.testing.simulation.violation import Violation


class Claim(msgspec.Struct, frozen=True):
    """A worker read its places of the batches [first, last) of an epoch, as the `position`-th of `world` ranks."""

    epoch: int
    first: int
    last: int
    position: int
    world: int


class PartFile(msgspec.Struct, frozen=True):
    """What a rank wrote. The claims are all it consumed since it took up the attempt `base`."""

    digest: str
    worker: str
    incarnation: int
    generation: int
    lineage: int
    step: int
    epoch: int
    batch: int
    base: int
    claims: tuple[Claim, ...] = ()


class Store:
    """Files by (job, attempt)."""

    def __init__(self) -> None:
        self.parts: dict[tuple[str, int], dict[int, PartFile]] = {}
        self.manifests: dict[tuple[str, int], tuple[str, ...]] = {}

    def put_part(self, job: str, attempt: int, rank: int, part: PartFile) -> None:
        """Create the file, exclusively: an attempt's number belongs to one process for each rank."""
        there = self.parts.setdefault((job, attempt), {}).setdefault(rank, part)
        if there.digest != part.digest:
            raise Violation("parts", f"two processes wrote rank {rank} of attempt {attempt} of {job}")

    def put_manifest(self, job: str, attempt: int, digests: tuple[str, ...]) -> None:
        """The manifest's bytes follow from the decision, so writing it twice changes nothing."""
        there = self.manifests.setdefault((job, attempt), digests)
        if there != digests:
            raise Violation("manifest", f"two different manifests for attempt {attempt} of {job}")
