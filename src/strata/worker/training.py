"""A training loop that goes on from where its job is: batches in, steps counted, checkpoints when they are due.

    with Training(state, loader, manager, epochs=3, save_every=100) as training:
        for batch in training:
            …

The law: a step counts when the next batch is asked for. A checkpoint has the state after a step, that step's number,
and where the data was, in one commit; to start again, on any number of ranks, goes on behind it. When it ends by itself
the last step is committed. A job that has to stop ends in `Stopped` or `Preempted`, which end the process with the
status that whoever started it looks for.

With an orchestrator, and `with training.step():` around what is done with a batch, a process outlives others that are
lost: it goes back, with all who are left, to the last checkpoint.
"""

import math
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import wait
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import Any, NoReturn, Self, cast

from strata import background
from strata.checkpoint import CheckpointManager
from strata.checkpoint.handle import SaveHandle
from strata.checkpoint.loading import is_changeable
from strata.core.events import MAX_RESOURCES
from strata.core.ids import check_int
from strata.data.loader import Loader
from strata.errors import (
    AccessDenied,
    CheckpointMismatch,
    InvalidInput,
    NotFound,
    RankFailed,
    SaveSkipped,
    StaleGeneration,
    StrataError,
    Superseded,
)
from strata.logs import get_logger
from strata.session import ends
from strata.worker.goodput import Cause, Goodput, Summary
from strata.worker.orchestrator import TrainingOrchestrator
from strata.worker.preemption import REQUEUE, REQUEUED, Notice, Notices, Preempted, Stopped, is_requeue
from strata.worker.restoring import check_data, put, samples_in
from strata.worker.votes import Votes, votes_of

logger = get_logger("strata.worker")

DATA = "data"
"""What a checkpoint calls the data of a loader that is part of no job."""
LOST = (OSError, RuntimeError, StrataError)
"""Errors that a step may end with because another rank is lost: those of sockets, of torch's collectives, of Strata."""
OTHERS = (ConnectionError, StrataError)
"""Of these, those that another rank may be the cause of though it is not lost: it went back by itself, say."""
FINAL = (InvalidInput, CheckpointMismatch, AccessDenied, NotImplementedError, RecursionError)
"""Of these, those that are this process's own, and that nothing is changed in by going back."""
UNCHANGEABLE = (bytes, bytearray, memoryview, str, int, float, tuple, type(None))
TRIES = 5
NOTICE_SECONDS = 30.0
LOOK_SECONDS = 0.05
SHOW_SECONDS = 5.0
"""Where the time goes is told to the coordinator about so often."""


class Training:
    """state: what is saved and loaded: a `strata.torch.TrainState`, a dict, or any object that CheckpointManager takes.
        Dicts and lists are changed where they are when it is loaded; arrays in them that cannot be changed, such as
        JAX's, are others then.
    loader: gives the batches. manager: where checkpoints are. epochs: so many times through the data.
    save_every: a checkpoint after each so many steps; None: at the end, and when somebody asks.
    orchestrator: with one, this process outlives others that are lost; it must be registered, and recovered where the
        world is open. Without one, a job that the manager takes part in is told of training and heeded all the same.
    notice_seconds: how long after SIGTERM or SIGUSR1 this process is killed.
    """

    def __init__(
        self,
        state: Any,
        loader: Loader,
        manager: CheckpointManager,
        *,
        epochs: int = 1,
        save_every: int | None = None,
        orchestrator: TrainingOrchestrator | None = None,
        notice_seconds: float = NOTICE_SECONDS,
    ) -> None:
        if isinstance(state, UNCHANGEABLE):
            raise InvalidInput(
                f"a state that is a {type(state).__name__} cannot be what a checkpoint has once that is loaded: put it "
                "into a dict"
            )
        if not isinstance(loader, Loader):
            raise InvalidInput(
                f"Training takes its batches from a strata.data.Loader, and not from {type(loader).__name__} (loader)"
            )
        if not isinstance(manager, CheckpointManager):
            raise InvalidInput(f"manager must be a CheckpointManager, not {type(manager).__name__}")
        self.state, self.loader, self.manager = state, loader, manager
        self._epochs = check_int(epochs, "epochs", least=1)
        self._save_every = None if save_every is None else check_int(save_every, "save_every", least=1)
        self._orchestrator = orchestrator
        self._goes_back = orchestrator is not None
        """Whether it does, with those who are left, when others are lost."""
        self._notices = Notices(notice_seconds, _weakly(self._on_notice))
        self._notice: Notice | None = None
        """As this process was given it."""
        self._heeded: Notice | None = None
        """As it is acted on, at the same step as by the others, where they can agree on one."""
        self._votes: Votes | None = None
        self._alone_after = math.inf
        """When it is too late to agree with others on where to stop."""
        self._is_alone = False
        """Whether it stops without that, though there is a coordinator to ask."""
        self._is_interruptible = False
        """Whether a notice ends it at once: nothing was done since the last commit."""
        self.completed = 0
        """So many steps, since the beginning of the job."""
        self._saved = -1
        self._last_save: SaveHandle | None = None
        """Since training went on from a checkpoint."""
        self._failed: Exception | None = None
        self._ended = ""
        """Why nothing is left to do."""
        self._tries = 0
        """How often something failed that was not this process's, since a step was completed."""
        self._account = Goodput(time.monotonic())
        self._shown = 0.0
        self._reported: dict[str, float] = {}
        self.on_world: list[Callable[[], None]] = []
        """Called when this process has found its place among those who are there, whenever that is another world: to
        connect to them, say."""
        self.recoveries = 0
        """How often this process went back to a checkpoint with those who were left."""

    # -- its life ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        ends("")
        self._attach()
        self.manager.listen(self._notices.saved)
        self._notices.watch()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """What is under way is committed, whatever ended the loop; its failure is raised unless another error is."""
        if isinstance(error, Exception):
            ends(f"{type(error).__name__}: {error}", died=True)
        elif error is None or isinstance(error, SystemExit | GeneratorExit):
            ends(self._ended)
        else:
            ends(f"it was interrupted: {type(error).__name__}")
        if self._votes is not None and (kind is None or issubclass(kind, Stopped)):
            self._votes.close()
        if kind is not None and issubclass(kind, Preempted):
            self._notices.end()
        else:
            self._notices.unwatch()
        try:
            self.manager.close()
        except StrataError:
            if kind is None:
                raise
            logger.exception("the last save failed")
        finally:
            self.loader.close()
            if self._orchestrator is not None and not self._goes_back:
                self._orchestrator.blocking.deregister()
                self._orchestrator = None
        if self._failed is not None and kind is None:  # the loop was left behind a step that failed
            raise self._failed

    def _attach(self) -> None:
        self.loader.goes_back_if(self._has_changed)
        if not self.loader.is_of_a_job:
            self.manager.reads(DATA, self.loader.data_position)

    @property
    def goodput(self) -> Summary:
        """Where the time went since this was made: how much of it made steps that count, and what took the rest."""
        return self._account.summary(time.monotonic())

    @contextmanager
    def spent(self, cause: Cause) -> Iterator[None]:
        """What is done here is put down to this cause, such as "barrier" for waiting within a step."""
        self._account.enter(cause, time.monotonic())
        try:
            yield
        finally:
            self._account.leave(time.monotonic())

    def report(self, **numbers: float) -> None:
        """Numbers of the step at hand, such as the loss: a checkpoint has them as its metrics, the coordinator shows
        the first of them."""
        self._reported = {name: float(value) for name, value in numbers.items()}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around all that is done with a batch. If it fails because another rank is lost, this one goes back with those
        who are left; other errors are raised. Where no orchestrator was given all are."""
        try:
            yield
        except LOST as error:
            if not self._goes_back or isinstance(error, FINAL):
                raise
            self._failed = error

    # -- the loop ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        if self._saved >= 0:  # it was left, and is entered again
            if self._last_save is not None and self._last_save.told:  # of its failure, and now all goes on behind it
                self._last_save = None
            with suppress(StaleGeneration, SaveSkipped):
                self._wait_for_saves()
        self._restore(is_stale=self._goes_back and self._its_orchestrator.is_under_way)
        if not self._goes_back:
            self._follow()
        while True:
            try:
                while self._has_more():
                    yield from self._epoch()
                self._finish()
                return
            except StaleGeneration as stale:
                self._go_back(stale)

    def _follow(self) -> None:
        """Nobody gave it an orchestrator. Ranks that torch connects agree on a notice by themselves, also while the
        coordinator is away; what an operator wants comes through the job."""
        if self._votes is None:
            self._votes = votes_of(self.manager.world_size)
        session = self.manager.session
        if self._orchestrator is None and session is not None:
            self._orchestrator = TrainingOrchestrator.following(session)

    @property
    def _its_orchestrator(self) -> TrainingOrchestrator:
        assert self._orchestrator is not None
        return self._orchestrator

    def _has_more(self) -> bool:
        """Whether an epoch is left, once it is known where all ranks are."""
        with self.spent("data"):
            self.loader.settle()
        return self.loader.epoch < self._epochs

    def _finish(self) -> None:
        """Who is lost before the last step is committed is gone back for, as at any other."""
        if self._may_skip:
            self._wait_for_room()
        if self._saved != self.completed or self._is_left_out:
            self._save()
        try:
            self._wait_for_saves()
        except SaveSkipped as skipped:  # by the coordinator, which waits for one that was begun before
            if self._changes_soon():
                raise StaleGeneration(f"step {self.completed} is not saved: {skipped}", generation=0) from skipped
            self._save()
            self._wait_for_saves()
        self._ended = f"finished at step {self.completed}"
        self._say("idle")

    def _epoch(self) -> Iterator[Any]:
        """The rest of it. StaleGeneration if the world has changed."""
        with closing(cast(Generator[Any, None, None], iter(self.loader))) as batches:
            while True:
                with self.spent("data"):
                    batch = next(batches, None)
                if batch is None:  # and who is through with it may have left
                    return
                if self._has_changed():
                    raise StaleGeneration("the world has changed", generation=0)
                self._waited_seconds()  # before it, which was no part of it
                self._account.enter("step", time.monotonic())
                try:
                    yield batch
                except GeneratorExit:  # the loop was left
                    self._account.abandon(time.monotonic())
                    raise
                if self._failed is not None:
                    self._account.abandon(time.monotonic())
                    self._wait_for_change(self._failed)
                self._account.put_down("barrier", self._waited_seconds(), time.monotonic())
                self._account.leave(time.monotonic(), samples_in(batch))
                self._complete()

    def _waited_seconds(self) -> float:
        return 0.0 if self._orchestrator is None else self._orchestrator.waited_seconds()

    def _complete(self) -> None:
        self.completed, self._tries = self.completed + 1, 0
        self._say("training")
        orchestrator, every = self._orchestrator, self._save_every
        with self.spent("barrier"):  # others may have yet to say whether they save here
            asked = orchestrator is not None and orchestrator.should_save(self.completed)
            self._heeded = self._heed()
        is_last = self._is_last()
        if is_last and self._may_skip:
            self._wait_for_room()
        if asked or (every is not None and self.completed % every == 0) or is_last:
            self._save()
        self._stop_if_told()

    def _heed(self) -> Notice | None:
        """The notice that this process acts on now: not before all ranks do, where they can agree."""
        notice, orchestrator = self._notice, self._orchestrator
        if self._votes is not None:
            return self._votes.after_step(notice, self._notices.seconds)
        if notice is None or orchestrator is None or not notice.is_enough or orchestrator.stopping is not None:
            return notice
        needs_nobody = self.manager.world_size == 1 and orchestrator.session.is_silent
        if not needs_nobody and time.monotonic() < self._alone_after:
            return None
        logger.warning("%s: no coordinator says where all ranks stop, and this one stops by itself", notice.reason)
        self._is_alone = True
        return notice

    def _is_last(self) -> bool:
        """Whether it stops here, and saves before. Of several ranks one alone cannot."""
        stop = None if self._orchestrator is None else self._orchestrator.stopping
        if stop is not None:
            return stop.is_saved
        can_save = self._orchestrator is None or self._votes is not None or self.manager.world_size == 1
        return self._heeded is not None and self._heeded.is_enough and can_save

    @property
    def _may_skip(self) -> bool:
        """Whether a save comes to nothing while another is under way, which the last may not."""
        return self.manager.config.when_busy != "wait"

    @property
    def _is_left_out(self) -> bool:
        return self._last_save is not None and self._last_save.status in ("skipped", "replaced")

    def _wait_for_room(self) -> None:
        try:
            self._wait_for_saves()
        except StaleGeneration:
            raise
        except SaveSkipped:  # and the next takes its place
            return
        except StrataError as error:
            logger.warning("a save before the last failed: %s", error)

    def _save(self) -> None:
        self._say("checkpointing")
        with self.spent("checkpoint"):
            self._last_save = self.manager.save_async(
                self.state, self.completed, epoch=self.loader.epoch, metrics=self._reported or None
            )
        self._saved = self.completed
        self._say("training")

    def _wait_for_saves(self) -> None:
        """Until the last is committed. That one before it failed was logged then, and ends nothing: what it had is in
        the last. StaleGeneration if that is not committed, and the world has changed: it never will be."""
        with self.spent("checkpoint"):
            try:
                while not self._is_written():
                    if self._has_changed() and self.manager.latest_step() != self._saved:
                        raise StaleGeneration(f"step {self._saved} is not committed", generation=0)
                if self._last_save is not None:
                    self._last_save.result()
            except (StaleGeneration, SaveSkipped):
                raise
            except StrataError as error:
                if self.manager.latest_step() != self._saved:
                    if self._changes_soon():
                        raise StaleGeneration(f"step {self._saved} is not saved: {error}", generation=0) from error
                    raise
                logger.warning("step %d is committed; a save before it failed: %s", self._saved, error)

    def _is_written(self) -> bool:
        """Whether nothing is under way. Who would be told of others that are lost waits for a moment only."""
        try:
            self.manager.wait(LOOK_SECONDS if self._goes_back else None)
        except TimeoutError:
            return False
        return True

    def _stop_if_told(self) -> None:
        notice = self._heeded
        stop = None if self._orchestrator is None else self._orchestrator.stopping
        if stop is None and notice is None:
            return
        reason = stop.reason if stop is not None else "" if notice is None else notice.reason
        is_preempted = notice is not None or is_requeue(reason)
        if notice is None or notice.is_enough:
            self._wait_for_the_last(must=stop is not None and stop.is_saved and not is_preempted)
        if not self._is_alone:
            self.loader.finish()
        self._stop(reason, is_preempted=is_preempted)

    def _stop(self, reason: str, *, is_preempted: bool) -> NoReturn:
        logger.warning("training stops at step %d: %s", self.completed, reason)
        what = REQUEUED if is_preempted else "stopped"
        self._ended = reason if reason.startswith(f"{what}: ") else f"{what}: {reason}"
        raise Preempted(REQUEUE) if is_preempted else Stopped(0)

    def _wait_for_the_last(self, *, must: bool) -> None:
        """Nobody goes back any more. Who is to be started again is, from the commit that there is; who was told to stop
        without saving wants no more. `must`: its failure is one of the job."""
        try:
            if self._is_on_its_own:
                self._wait_for_others()
            else:
                self._wait_for_saves()
        except StrataError as error:
            if not must:
                logger.error("step %d is not saved, and the last commit stays: %s", self._saved, error)
            elif isinstance(error, StaleGeneration):
                raise RankFailed(f"training stops, and {error}") from error
            else:
                raise

    @property
    def _is_on_its_own(self) -> bool:
        """Whether others save with this rank that it could not agree on a step with."""
        has_votes = self._votes is not None and not self._votes.is_over
        can_agree = has_votes or (self._orchestrator is not None and not self._is_alone)
        return self._heeded is not None and not can_agree and self.manager.world_size > 1

    def _wait_for_others(self) -> None:
        """They may be at the same step by chance. What is left of the notice is for ending in good order."""
        left = self._alone_after - time.monotonic()
        try:
            with self.spent("checkpoint"):
                self.manager.wait(max(LOOK_SECONDS, left))
        except TimeoutError as error:
            self.manager.give_up()
            raise RankFailed(
                "the other ranks save no such step. They cannot agree on one: start torch.distributed before, or run a "
                "coordinator, and give Training an orchestrator"
            ) from error

    def _on_notice(self, notice: Notice) -> None:
        """In a signal handler: whom it concerns is told behind. The others learn that they are to be started again."""
        if self._notice is not None:
            return
        self._alone_after = time.monotonic() + notice.seconds - self._notices.kept_seconds
        self._notice, orchestrator = notice, self._orchestrator
        if orchestrator is not None and self._votes is None:
            orchestrator.ask_to_stop(f"{REQUEUED}: {notice.reason}", notice.seconds, save=notice.is_enough)
        if self._is_interruptible:
            self._leave_off(notice.reason, is_preempted=True)

    def _leave_off(self, reason: str, *, is_preempted: bool) -> NoReturn:
        """Where it waits for others, with nothing done since the last commit."""
        self._is_interruptible = False
        self.manager.give_up()
        self._stop(reason, is_preempted=is_preempted)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """What waits for others before a step can be made: a notice, or the stop of the job, ends it at once."""
        self._is_interruptible = True
        try:
            if self._notice is not None:
                self._leave_off(self._notice.reason, is_preempted=True)
            yield
        finally:
            self._is_interruptible = False

    def _say(self, state: str) -> None:
        if self._orchestrator is None:
            return
        resources, now = None, time.monotonic()
        if now - self._shown > SHOW_SECONDS:
            own, self._shown = self._account.summary(now).as_resources(), now
            resources = dict(islice(self._reported.items(), MAX_RESOURCES - len(own))) | own
        self._orchestrator.report(state, self.completed, self.loader.epoch, resources)

    # -- going back --------------------------------------------------------------------------------------------------

    def _restore(self, *, is_stale: bool) -> None:
        """To where all ranks go on from, which is to be agreed on anew if what was is behind. If the world changes
        meanwhile, it is another place."""
        with self.spent("recovery"), self._interruptible():
            while True:
                self._say("recovering")
                try:
                    if is_stale:
                        self._rejoin()
                    self._load()
                    is_stale = self._has_changed()
                    if not is_stale:
                        for each in self.on_world:
                            each()
                        return
                except LOST as error:
                    if not self._goes_back or isinstance(error, FINAL):
                        raise
                    if isinstance(error, Superseded) and not self._its_orchestrator.is_registered:
                        raise  # another process has its name, for good
                    logger.warning("training does not go on yet, and tries again: %s", error)
                    with suppress(StaleGeneration):
                        self._wait_for_change(error)
                    is_stale = True

    def _load(self) -> None:
        """Where there is no checkpoint yet, the beginning is made one: so there is always something to go back to."""
        try:
            loaded = self.manager.load(**self._target())
        except NotFound:
            if self.completed or self.manager.latest_step() is not None:
                raise
            self.manager.save(self.state, 0)
            self._saved, self._last_save = 0, None
            return
        put(loaded, self.state)
        found = self.manager.describe(self.manager.loaded_step)  # which may not be the latest any more
        self._account.lost(max(0, self.completed - found.step))
        check_data(found, self.loader.dataset_id or DATA)
        self.completed = self._saved = found.step
        self._last_save = None
        if not self.loader.is_of_a_job and DATA in found.data:
            self.loader.go_on_from(found.data[DATA])
        logger.info("training goes on from step %d", self.completed)

    def _target(self) -> dict[str, Any]:
        """Arrays are filled where they lie, for whoever holds them, too; if some cannot be, as JAX's, all are new."""
        is_new = isinstance(self.state, dict | list) and not is_changeable(self.state)
        return {"like" if is_new else "into": self.state}

    def _has_changed(self) -> bool:
        return self._goes_back and self._its_orchestrator.is_stale

    def _changes_soon(self) -> bool:
        """Whether the world does in the time that it takes to know of every process whether it is lost."""
        if not self._goes_back:
            return False
        orchestrator = self._its_orchestrator
        ends = time.monotonic() + orchestrator.patience_seconds
        with self.spent("recovery"):
            while not orchestrator.is_stale and time.monotonic() < ends:
                time.sleep(LOOK_SECONDS)
        return orchestrator.is_stale

    def _wait_for_change(self, error: Exception) -> None:
        """Something failed. If the world changes soon, that was why: StaleGeneration. If it does not, it may still be
        another's fault, which all go back for, some times; else it is raised."""
        self._failed = None
        if not self._changes_soon():
            self._tries += 1
            if self._tries > TRIES or not isinstance(error, OTHERS):
                raise error
        raise StaleGeneration(f"the world has changed, or the others failed: {error}", generation=0) from error

    def _go_back(self, why: StaleGeneration) -> None:
        if not self._goes_back:
            raise why
        stop = self._its_orchestrator.stopping
        if stop is not None:  # the others have stopped, and are not waited for
            logger.warning("this process goes back no more, and the last commit stays: %s", why)
            self._stop(stop.reason, is_preempted=self._notice is not None or is_requeue(stop.reason))
        logger.warning("training goes back to a checkpoint: %s", why)
        self.recoveries += 1
        self._restore(is_stale=True)

    def _rejoin(self) -> None:
        """The place that this process has among those who are there now."""
        orchestrator = self._its_orchestrator
        self.manager.give_up()
        if self.loader.is_of_a_job:
            self.loader.rejoin()
        self._recover(orchestrator)
        self.manager = self.manager.reopened()
        self._attach()

    def _recover(self, orchestrator: TrainingOrchestrator) -> None:
        """Others may not come for long, and meanwhile the job may be stopped."""
        recovering = background.start(orchestrator.recover(again=not orchestrator.is_stale))
        try:
            while not wait([recovering], LOOK_SECONDS).done:
                if (stop := orchestrator.stopping) is not None:
                    self._leave_off(stop.reason, is_preempted=is_requeue(stop.reason))
            recovering.result()
        finally:
            recovering.cancel()


def _weakly(given: Callable[[Notice], None]) -> Callable[[Notice], None]:
    """Call this method for as long as its object lives. What holds this is held by it: with a plain method, training
    that was dropped would keep its threads until the garbage collector looks."""
    method = weakref.WeakMethod(given)

    def give_if_alive(notice: Notice) -> None:
        alive = method()
        if alive is not None:
            alive(notice)

    return give_if_alive
