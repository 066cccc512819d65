"""What a job may rely on, whatever fails. Each law is looked at when it could be broken, against what really lies in
the storage.

    same      all ranks of a world go on from the same checkpoint
    whole     what is committed has the parts of all ranks, of one step and one world, and every byte of them
    kept      what any rank was told is committed no later world goes back behind
    steady    a world that saves is not taken back: the coordinator only learns of what was saved while it was away
    fenced    nothing that a world saved which others had taken over from leads to where the job is
    clean     when all is well again nothing lies in the storage that no checkpoint needs
    listed    the coordinator's latest is the storage's, and all that one world saved while the coordinator was away
"""

from typing import TYPE_CHECKING

import msgspec

from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.finishing import place_of
from strata.checkpoint.manifest import Metadata, decode_metadata, decode_part, digest_of
from strata.checkpoint.store import Folder, Store
from strata.core.lineages import head
from strata.errors import CheckpointDamaged
from strata.storage.memory import MemoryStorage
from strata.testing.saves.process import JOB, START, Content
from strata.testing.simulation.violation import Violation

if TYPE_CHECKING:
    from strata.testing.saves.process import Process
    from strata.testing.saves.run import SavesSimulation
    from strata.testing.saves.worlds import World

ROOT = f"{JOB}/checkpoints"


class Checks:
    """Of one simulation."""

    def __init__(self, sim: "SavesSimulation") -> None:
        self._sim = sim
        self.safe = START
        self.commits = self.recoveries = 0
        self.violation: Violation | None = None
        self._known: set[str] = set()
        self._late: set[str] = set()
        """Attempts whose manifest was put again after retention had removed it: the call had been stuck for so long.
        That is the storage's doing; such a one is of an old step, and goes when retention next looks."""

    def broken(self, rule: str, message: str) -> None:
        """The first one counts: whatever follows may follow from it."""
        if self.violation is None:
            self.violation = Violation(rule, message)
            self._sim.note("checker", str(self.violation))

    # -- as it goes --------------------------------------------------------------------------------------------------

    def told(self, process: "Process", step: int) -> None:
        """That it is committed. A zombie may be told so of what others have left behind by then."""
        if process.world.is_over:
            return
        self.safe = max(self.safe, step)
        self._check_steady(process.world)

    def _check_steady(self, world: "World") -> None:
        """From when all of it have heard from the coordinator where they go on from."""
        sim = self._sim
        if not (sim.plan.coordinator and sim.host.is_up):
            return
        points = sim.host.job(JOB).points
        if world.points is None:
            world.points = points if all(each.has_heard for each in world.processes) else None
        elif points != world.points:
            self.broken("steady", f"world {world.number} was taken back, from point {world.points} to {points}")

    def loaded(self, process: "Process", found: Content) -> None:
        if found.rank != process.rank:
            self.broken("whole", f"rank {process.rank} was given the part of rank {found.rank}, of step {found.step}")

    def goes_on(self, process: "Process") -> None:
        world, step = process.world, process.base[0]
        if world.is_over:
            return
        self.recoveries += 1
        if step < world.owed:
            self.broken(
                "kept",
                f"world {world.number} goes on from step {step}, but step {world.owed} was committed before it began",
            )
        others = {each.base for each in world.processes if each.ready.is_set() and not each.looked_alone}
        if len(others) > 1:
            self.broken("same", f"ranks of world {world.number} go on from {sorted(others)}: (step, saved by world)")

    def committed(self, path: str, data: bytes) -> None:
        """A manifest was put. One of a term that is over counts for nothing: `fenced` sees to that."""
        self.commits += 1
        try:
            metadata = decode_metadata(data, path)
        except CheckpointDamaged as error:
            self.broken("whole", f"a manifest was put that makes no sense: {error}")
            return
        self._sim.note("storage", f"{path.removeprefix(ROOT + '/')} is put: attempt {metadata.attempt}")
        if metadata.attempt in self._known:
            self._late.add(metadata.attempt)
        elif metadata.term == self._newest_term():
            self._check_whole(path, metadata)
        self._known.add(metadata.attempt)

    def _newest_term(self) -> int:
        lineage = self._sim.objects.get(f"{ROOT}/lineage.json")
        terms = msgspec.json.decode(lineage.data)["terms"] if lineage is not None else []
        return int(terms[-1]["term"]) if terms else 0

    def _check_whole(self, path: str, metadata: Metadata) -> None:
        ranks = [reference.rank for reference in metadata.parts]
        if ranks != list(range(self._sim.plan.ranks)):
            self.broken("whole", f"{path} has the parts of ranks {ranks} of {self._sim.plan.ranks}")
            return
        try:
            contents = self.contents(metadata)
        except (KeyError, ValueError, msgspec.DecodeError) as error:
            self.broken("whole", f"a part of {path} is not there, or not as it was written: {error!r}")
            return
        for rank, content in enumerate(contents):
            first = contents[0]
            same = (content.world, content.base_world, content.base_step) == (
                first.world,
                first.base_world,
                first.base_step,
            )
            if not same or (content.rank, content.step) != (rank, metadata.step):
                self.broken("whole", f"{path} of step {metadata.step} mixes {content} with {first}")
                return

    def contents(self, metadata: Metadata) -> list[Content]:
        """Of its parts, from what lies there."""
        found = []
        for reference in metadata.parts:
            manifest = self._sim.objects[f"{ROOT}/{reference.path}"].data
            if digest_of(manifest) != reference.digest:
                raise ValueError(f"{reference.path} has another digest")
            part = decode_part(manifest, reference.path)
            data = self._sim.objects[f"{ROOT}/{part.files[0].path}"].data
            if [digest_of(data)] != [chunk.digest for chunk in part.tensors[0].chunks]:
                raise ValueError(f"{part.files[0].path} has another digest")
            found.append(msgspec.json.decode(data, type=Content))
        return found

    # -- with everything at rest, or nearly --------------------------------------------------------------------------

    async def line(self) -> None:
        """What leads to where the job is: whole, and each world's after what it went on from."""
        checkpoints = self._checkpoints()
        survey = await checkpoints.survey()
        before: Content | None = None
        late = -1  # which may be what the next world went on from, or not
        for step, folder in survey.line.items():
            metadata = await checkpoints.metadata(folder)
            if metadata.attempt in self._late:
                late = step
                continue
            self._check_whole(folder.name, metadata)
            if self.violation is not None:
                return
            content = self.contents(metadata)[0]
            base = (content.base_step, content.base_world)
            is_after = before is None or base == (before.step, before.world) or base[0] == late
            if before is not None and before.world != content.world and not is_after:
                self.broken(
                    "fenced",
                    f"step {step} was saved by world {content.world}, which went on from step {base[0]} of world "
                    f"{base[1]}, but step {before.step} of world {before.world} lies before it",
                )
            before = content

    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(Store(MemoryStorage(space=self._sim.space), JOB))

    async def at_rest(self, run: str) -> None:
        """`run`: whose words may still be there."""
        await self.line()
        checkpoints = self._checkpoints()
        sound, damaged = await checkpoints.look()
        for damage in damaged.values():
            self.broken("whole", f"a manifest is damaged: {damage.error}")
        needed = {f"{ROOT}/{path}" for path in await checkpoints.files_needed()} | {f"{ROOT}/lineage.json"}
        stems = {metadata.attempt[:-4] for _, metadata in sound}
        words = tuple(f"{ROOT}/runs/{name}/" for name in (run, *stems))
        left = [path for path in sorted(self._sim.objects) if path not in needed and not path.startswith(words)]
        if left:
            self.broken("clean", f"nobody needs {len(left)} objects: {', '.join(left[:6])}")
        if self._sim.plan.coordinator:
            await self.listed()

    async def listed(self) -> None:
        """The coordinator knows the latest."""
        checkpoints = self._checkpoints()
        latest: Folder | None = await checkpoints.latest()
        place = "" if latest is None else place_of(latest, await checkpoints.metadata(latest))
        known = head(self._sim.host.job(JOB))
        if known is None or known.place != place:
            self.broken("listed", f"the storage's latest is {place!r}, and the coordinator's {known}")

    async def all_listed(self) -> None:
        """The coordinator knows each checkpoint that is in the storage, and no other: with all ranks at rest."""
        stored = {place_of(folder, metadata) for folder, metadata in await self._checkpoints().all()}
        attempts = self._sim.host.job(JOB).attempts.values()
        known = {attempt.place for attempt in attempts if attempt.status == "committed"}
        if known != stored:
            self.broken(
                "listed",
                f"the coordinator does not know {sorted(stored - known)}, and knows {sorted(known - stored)}, which "
                "are not in the storage",
            )
