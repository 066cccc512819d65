"""Which checkpoints of a job that saves alone are no longer kept. A pure question; `Checkpoints.delete` acts on it.

The law: never the latest on the line, never one that is pinned.
"""

import math
from collections.abc import Collection, Sequence

from strata.checkpoint.manifest import Metadata
from strata.checkpoint.store import Folder
from strata.core.settings import Retention

KEEP_ALL = Retention()


def doomed(
    everything: Sequence[tuple[Folder, Metadata]], line: Collection[Folder], pinned: Collection[str], rule: Retention
) -> list[Folder]:
    """Those to delete, oldest first. What was left behind goes once as many new ones are there as are to be kept."""
    if not (rule.keep_count or rule.keep_every or rule.best_metric):
        return []
    usable = sorted(((f, m) for f, m in everything if f in line), key=lambda pair: pair[1].step)
    if not usable:
        return []
    keep = {usable[-1][0]}
    keep.update(folder for folder, _ in usable[-rule.keep_count or len(usable) :])
    if rule.keep_every:
        keep.update(folder for folder, metadata in usable if metadata.step % rule.keep_every == 0)
    if rule.best_metric:
        keep.update(_best(usable, rule))
    newest = max(metadata.term for _, metadata in usable)
    fresh = sum(metadata.term == newest for _, metadata in usable)
    if fresh < max(1, rule.keep_count):
        keep.update(folder for folder, _ in everything if folder not in line)
    return [folder for folder, _ in everything if folder not in keep and folder.name not in pinned]


def _best(usable: Sequence[tuple[Folder, Metadata]], rule: Retention) -> list[Folder]:
    scored = [(float(m.metrics[rule.best_metric]), f) for f, m in usable if rule.best_metric in m.metrics]
    scored = [(score, folder) for score, folder in scored if not math.isnan(score)]
    scored.sort(key=lambda pair: pair[0], reverse=rule.best_mode == "max")
    return [folder for _, folder in scored[: rule.best_count]]
