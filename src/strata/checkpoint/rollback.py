"""Back to an older checkpoint, by hand: the job goes on from there when it is started again.

It is a term that saves nothing. So what came after the step is off the line and never the latest again, as if the job
itself had loaded that step and gone on; and a job that still runs is told at its next save that it must not.
"""

from strata.checkpoint.checkpoints import Checkpoints, some_steps
from strata.checkpoint.lineage import begin_term, writer_name
from strata.errors import NotFound


async def behind(checkpoints: Checkpoints, step: int) -> list[int]:
    """The steps that a return to this one leaves behind. NotFound if there is none, or not on the line."""
    survey = await checkpoints.survey()
    line = survey.line
    if step not in {folder.step for folder in (*dict(survey.sound), *survey.damaged)}:
        there = some_steps(line)
        raise NotFound(
            f"there is no committed checkpoint of step {step} in {checkpoints.where}; the latest are: {there}"
        )
    if step not in line:
        raise NotFound(
            f"step {step} of {checkpoints.where} is not on the line that led to where the job is, so it cannot go back "
            f"to it; the latest that are: {some_steps(line)}"
        )
    return sorted(known for known in line if known > step)


async def roll_back(checkpoints: Checkpoints, step: int) -> list[int]:
    """The steps that are left behind."""
    left = await behind(checkpoints, step)
    known = [metadata for _, metadata in await checkpoints.all()]
    oldest = min((metadata.term for metadata in known), default=0)
    await begin_term(checkpoints.store, step, writer_name(), oldest, known)
    return left
