"""A checkpoint that is open: nobody deletes it while an object looks at it, has its arrays filled, and takes them.

The object's code runs in the caller's thread, reading on the private loop. So loading takes turns:

    plan     the caller's thread    what fits where; nothing is changed
    read     the loop               arrays are filled, and verified as they come in
    apply    the caller's thread    the plan's own
"""

from contextlib import AsyncExitStack
from typing import Any

from strata.checkpoint.loading import StateLoader
from strata.checkpoint.matching import LoadReport, Rename, renamer
from strata.checkpoint.stateful import Plan, plan_load
from strata.checkpoint.store import Folder


class Opened:
    """Made by `Checkpoints.open`, and closed by whoever asked."""

    def __init__(self, folder: Folder, where: str, loader: StateLoader, mark: AsyncExitStack) -> None:
        self.folder, self._where, self._loader, self._mark = folder, where, loader, mark
        self.report = LoadReport()

    def plan(self, into: Any, rename: Rename | None) -> Plan:
        return plan_load(into, self._loader.outline(renamer(rename), self.report))

    async def read(self, plan: Plan, strict: bool) -> Any:
        """The tree for the plan to apply. CheckpointMismatch, with nothing changed, if anything does not fit."""
        return await self._loader.fill(plan.targets, self.report, self._where if strict else None)

    async def close(self) -> None:
        await self._mark.aclose()
