"""The mutants: each a rule of the core, or of how checkpoints are saved and deleted, broken on purpose at one place.

They are kept as diffs, each with what is expected to notice it: a file for each module in `rules/`, named after it. A
hunk is a mutant:

    @@ what holds no more [what notices it: `simulation`, or a test file, or `file::test`]
     a line that stays
    -a line of the source
    +the line that takes its place
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

RULES = Path(__file__).parent / "rules"
SIMULATION = "simulation"

_HEADER = re.compile(r"@@ (?P<name>.+) \[(?P<noticed_by>\S+)\]")


class Mutant(NamedTuple):
    """`old` and `new` are whole lines; `old` stands once in the module's source."""

    name: str
    module: str
    old: str
    new: str
    noticed_by: str

    def mutate(self, source: str) -> str:
        """The module's source with the rule broken."""
        lines = f"\n{source}"
        found = lines.count(f"\n{self.old}")
        if found != 1:
            raise ValueError(f"mutant {self.name!r} is stale: its lines occur {found} times in {self.module}")
        return lines.replace(f"\n{self.old}", f"\n{self.new}")[1:]


def source_of(module: str) -> str:
    """A module's source, read without importing it."""
    package, *inside = module.split(".")
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], *inside).with_suffix(".py").read_text(encoding="utf-8")


def read(path: Path) -> Iterator[Mutant]:
    """The mutants of one file."""
    for hunk in re.split(r"^(?=@@ )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        header, *lines = hunk.rstrip("\n").splitlines()
        said = _HEADER.fullmatch(header)
        if said is None or any(line[:1] not in ("", " ", "-", "+") for line in lines):
            raise ValueError(f"{path.name} has a hunk that cannot be read: {header}")
        old = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+")
        new = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
        yield Mutant(said["name"], path.stem, old, new, said["noticed_by"])


MUTANTS = tuple(mutant for path in sorted(RULES.glob("*.diff")) for mutant in read(path))
