"""Peers: who is there, from which rank on, and whether it is still the world that is meant. A pure question."""

from strata.core.state import Job, Member
from strata.errors import StaleGeneration


def peers_from(job: Job, rank: int) -> list[Member]:
    """The processes that are there at this rank and above, ascending; those that drain are still there."""
    world = job.world
    return [world.members[world.by_rank[each]] for each in sorted(world.by_rank) if each >= rank]


def check_generation(job: Job, generation: int) -> None:
    """Refuse who means another world than there is now."""
    if generation != job.world.generation:
        raise StaleGeneration(
            f"this asks for the world of generation {generation}, but job {job.job!r} is in generation "
            f"{job.world.generation} now: recover, then look again from its first rank on",
            generation=job.world.generation,
        )
