"""Says in the log what a run left to defaults that it shares with other runs: its job, and where its checkpoints go."""

from strata.core.ids import DEFAULT_JOB
from strata.logs import get_logger

logger = get_logger("strata.checkpoint")

told_places: set[str] = set()


def tell_of_defaults(where: str, *, is_default_job: bool, is_default_path: bool) -> None:
    """Once in a process for each place. What this process alone can reach is shared with nobody."""
    if where in told_places or where.startswith("memory://") or not (is_default_job or is_default_path):
        return
    told_places.add(where)
    if is_default_path:
        logger.warning(
            "checkpoints go to %s, the default folder, which the machine may clear: give CheckpointManager a path, or "
            "set LOCAL_STORAGE_PATH",
            where,
        )
    if is_default_job:
        logger.warning(
            "no job_id was given, so the checkpoints in %s belong to job %r: another run without a job_id would "
            "supersede this one there. Give each run its own job_id, or set STRATA_JOB_ID",
            where,
            DEFAULT_JOB,
        )
