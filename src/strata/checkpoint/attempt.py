"""One try to save a step: where its files lie, and by which names they are known as its own."""

from typing import NamedTuple

from strata.checkpoint.datapositions import NOWHERE, Positions
from strata.checkpoint.lineage import Term, attempt_name
from strata.checkpoint.store import Folder


class Attempt(NamedTuple):
    """What is being saved: where to, and as whose."""

    folder: Folder
    term: Term
    name: str
    epoch: int
    metrics: dict[str, float]
    rank: int = 0
    data: Positions = NOWHERE
    """Where this rank is in each dataset."""

    @property
    def stem(self) -> str:
        """How the paths of all its files begin, but for that of bytes."""
        return f"{self.folder.name}/part-{self.rank}-{self.name}"

    @property
    def bytes_path(self) -> str:
        name = "model.bin" if not self.rank else f"model-{self.rank}.bin"
        return f"{self.folder.name}/{name}"

    @property
    def own_folder(self) -> Folder:
        """One that is this term's alone."""
        return Folder(self.folder.step, self.term.term)


def new_attempt(folder: Folder, term: Term, epoch: int, metrics: dict[str, float], data: Positions) -> Attempt:
    return Attempt(folder, term, attempt_name(term), epoch, metrics, data=data)
