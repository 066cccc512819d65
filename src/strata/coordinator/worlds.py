"""Pages of who is there, as a response: bounded in number and in bytes, and made once for all who ask for the same.

Everybody asks after every change of the world, and everybody for the same: a world of 10,000 is asked for a hundred
thousand pages, of which ten differ. What a page says follows from the job, its generation, how often a process that was
there said more of itself, and the term alone.
"""

from strata.coordinator.hub import Hub
from strata.coordinator.kept import KeptAnswers
from strata.core.ids import check_int
from strata.core.peers import check_generation, peers_from
from strata.core.state import Job, Member
from strata.v1 import coordinator_pb2 as pb

PEERS_AT_ONCE = 1000
PAGE_BYTES = 1 << 20
"""Of peers in one answer. One alone takes at most some 35 KB: its address and its metadata have limits."""
KEPT_BYTES = 32 << 20


class Worlds:
    """Of all jobs of a coordinator."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._kept = KeptAnswers(KEPT_BYTES)

    def page(self, request: pb.GetWorldRequest) -> bytes:
        check_int(request.from_rank, "from_rank")
        state = self._hub.machine.state
        job = state.job(request.job_id)
        if request.HasField("generation"):
            check_generation(job, request.generation)
        key = (job.job, job.world.generation, job.world.described, state.term, request.from_rank)
        found = self._kept.get(key)
        if found is None:
            found = _page(job, state.term, request.from_rank).SerializeToString()
            self._kept.keep(key, found)
        return found


def _page(job: Job, term: int, from_rank: int) -> pb.GetWorldResponse:
    world = job.world
    response = pb.GetWorldResponse(generation=world.generation, declared_size=world.declared, term=term)
    left = PAGE_BYTES
    for member in peers_from(job, from_rank):
        told = _peer(member)
        left -= told.ByteSize()
        if len(response.peers) == PEERS_AT_ONCE or (left < 0 and response.peers):
            response.next_rank = member.rank
            break
        response.peers.append(told)
    return response


def _peer(member: Member) -> pb.Peer:
    return pb.Peer(
        rank=member.rank,
        worker_id=member.worker,
        incarnation=member.incarnation,
        ip=member.ip,
        port=member.port,
        gpu_count=member.gpu_count,
        metadata=member.metadata,
        draining=member.status == "draining",
    )
