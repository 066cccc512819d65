"""`strata job`: what an operator does to a running job."""

from typing import Annotated, Any

import typer

from strata.cli.output import say
from strata.cli.remote import Url, configured

app = typer.Typer(no_args_is_help=True, help="Tell a running job to save, to stop, or to do without a worker.")

Job = Annotated[str, typer.Argument(help="The job's id.")]
Reason = Annotated[str, typer.Option(help="Why, for the others to read.")]


@app.command()
def checkpoint(job: Job, reason: Reason = "", url: Url = None) -> None:
    """Ask for a checkpoint now: at the next step that every rank agrees to."""
    answer = _call(url, "RequestCheckpoint", job_id=job, reason=reason)
    where = f"at step {answer.step}" if answer.step >= 0 else "at a step that the workers are being asked for"
    say(f"job {job} will save {where} (request {answer.request})")


@app.command()
def stop(
    job: Job,
    reason: Reason = "",
    without_checkpoint: Annotated[
        bool, typer.Option("--without-checkpoint", help="At once, without a last checkpoint.")
    ] = False,
    url: Url = None,
) -> None:
    """Tell all workers to stop, after one more checkpoint."""
    _call(url, "StopJob", job_id=job, reason=reason, without_checkpoint=without_checkpoint)
    first = "" if without_checkpoint else ", after one more checkpoint unless it was to stop at once before"
    say(f"job {job} is told to stop{first}")


@app.command()
def drain(
    job: Job, worker: Annotated[str, typer.Argument(help="The worker's id.")], reason: Reason = "", url: Url = None
) -> None:
    """Take one worker out in good order: its shards move while it still runs."""
    _call(url, "DrainWorker", job_id=job, worker_id=worker, reason=reason)
    say(f"worker {worker} of job {job} is draining")


def _call(url: str | None, method: str, **fields: Any) -> Any:
    from strata.rpc import BlockingChannel, ChannelOptions, RpcError
    from strata.wire.connecting import channel_to
    from strata.wire.errors import from_rpc
    from strata.wire.remotes import remote, request_for

    request = request_for(method, **fields)
    made = channel_to(configured(url, None), ChannelOptions(timeout_seconds=10.0))
    with BlockingChannel(made) as channel:
        try:
            return channel.call(remote(method), request)
        except RpcError as error:
            raise from_rpc(error) from None
