"""Where the checkpoints of a job are, for people and for programs."""

from dataclasses import dataclass, field

from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.copies import Copies
from strata.checkpoint.tiers import Tiers
from strata.checkpoint.uploader import Uploader
from strata.errors import StorageUnavailable


@dataclass(frozen=True, slots=True)
class StepStanding:
    """A checkpoint on the line.

    upload: `waiting` for its turn, `uploading`, `refused` for good, or `unwanted`, since retention would not keep it;
        empty where there is nothing to do. `problem` says why, or why not yet.
    """

    step: int
    local: bool
    remote: bool
    upload: str = ""
    uploaded_bytes: int = 0
    upload_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """Of a job. `local` is empty where there is no local tier.

    behind: how many checkpoints are to be uploaded. failed_uploads: tries in vain, in a row; `problem` is the last.
    """

    local: str
    remote: str
    steps: list[StepStanding] = field(default_factory=list)
    behind: int = 0
    failed_uploads: int = 0
    problem: str = ""


async def look_around(checkpoints: Checkpoints, uploader: Uploader | None) -> Standing:
    """If the storage behind does not answer: what the local disk knows, with the problem."""
    if not isinstance(checkpoints, Tiers):
        steps = [StepStanding(step, local=False, remote=True) for step in sorted(await checkpoints.line())]
        return Standing("", checkpoints.where, steps)
    problem = str((uploader and (uploader.superseded or uploader.problem)) or "")
    try:
        view = await checkpoints.view()
    except StorageUnavailable as error:
        view, problem = await checkpoints.near_view(), str(error)
    steps = [_step(each, uploader) for _, each in sorted(view.line().items())]
    behind = sum(each.upload in ("waiting", "uploading") for each in steps)
    failures = uploader.failures if uploader else 0
    return Standing(checkpoints.near.where, checkpoints.where, steps, behind, failures, problem)


def _step(copies: Copies, uploader: Uploader | None) -> StepStanding:
    step, attempt = copies.folder.step, copies.metadata.attempt
    if copies.far:
        return StepStanding(step, copies.near, remote=True)
    if uploader is None:
        return StepStanding(step, local=True, remote=False, upload="waiting")
    current = uploader.current
    if current is not None and current.folder == copies.folder:
        return StepStanding(step, True, False, "uploading", current.done, current.bytes)
    if attempt in uploader.refused:
        return StepStanding(step, True, False, "refused", problem=str(uploader.refused[attempt]))
    if uploader.superseded is not None:
        return StepStanding(step, True, False, "refused", problem=str(uploader.superseded))
    upload = "unwanted" if attempt in uploader.unwanted else "waiting"
    return StepStanding(step, True, False, upload, problem=str(uploader.problem or ""))
