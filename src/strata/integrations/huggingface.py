"""`StrataTrainerMixin`: the Trainer of transformers saves and resumes through Strata, while training goes on.

    class MyTrainer(StrataTrainerMixin, Trainer): ...

    trainer = MyTrainer(model, args, train_dataset=data, checkpoints="s3://bucket/runs")
    trainer.train(resume_from_checkpoint=True)

The law: what the Trainer writes into `checkpoint-100` folders, and needs in order to go on, is one checkpoint of a
Strata job instead, step 100, there when it is committed and not before. Resumed, a run goes on to the bit as if it had
not stopped. No pickle is stored, and none is loaded. Needs `transformers` and `accelerate`.
"""

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from strata.checkpoint.manager import CheckpointManager, Where
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.checkpoint.stateful import Outline, Plan
from strata.core.settings import Retention
from strata.errors import InvalidInput, NotFound
from strata.logs import get_logger

try:
    from accelerate.utils import broadcast_object_list
    from transformers.trainer_callback import ExportableState

    from strata.torch import TrainState
    from strata.torch.rng import remembered
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"strata.integrations.huggingface needs {missing.name}: pip install 'strata-runtime[huggingface]'"
    ) from missing

logger = get_logger("strata.integrations.huggingface")

STATE_FILE = "trainer_state.json"
"""Where the Trainer looks for its own state."""
PROCESS_FIELDS = ("is_local_process_zero", "is_world_process_zero")
"""What each process has of its own in that."""
BEST = "best_model_checkpoint"
FOLDER = "checkpoint-"
"""What the Trainer would call a folder, before the step."""


class StrataTrainerMixin:
    """Stands before `Trainer`, or a class made of it, in the list of bases.

    checkpoints: where they go, as a URL or a folder, `args.output_dir` if nothing is said; or a CheckpointManager. One
    that is made here has the rank and the size of the world that the Trainer has, and `save_total_limit` as its
    `keep_count`: so many of the latest are kept, and the best one beside them with `load_best_model_at_end`. One that
    is given has them of its own, and is not closed. job_id: if it is made here.

    `train(resume_from_checkpoint=…)`: True for the latest, a number for that step, or the path of a folder that the
    Trainer wrote without Strata. Model, optimizer, scheduler, scaler, random numbers and the Trainer's own state are
    saved, and the model's configuration, for `strata ckpt export hf`; a tokenizer, which does not change, is not.

    DataParallel, DDP and FSDP2 work; DeepSpeed, FSDP1 and hyper-parameter search, which save in ways of their own, are
    refused, and so is `push_to_hub`, which uploads folders. A save that fails is logged, and raised when `train` ends.
    """

    def __init__(
        self,
        *arguments: Any,
        checkpoints: CheckpointManager | Where | None = None,
        job_id: str | None = None,
        **options: Any,
    ) -> None:
        for args in (*arguments[1:2], *([options["args"]] if options.get("args") is not None else [])):
            _check_arguments(args, checkpoints, job_id)  # before the Trainer calls anybody
        super().__init__(*arguments, **options)
        self._strata_given, self._strata_job = checkpoints, job_id
        self._strata: CheckpointManager | None = None
        self._resumed: _Resumed | None = None

    # -- what users and the Trainer call -----------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **options: Any) -> Any:
        """As Trainer's; what is saved is committed when this returns, or raised why it is not."""
        trainer: Any = super()
        manager = self._strata = self._manager()
        try:
            step = self._step_of(resume_from_checkpoint, manager)
            if step is None:
                trained = trainer.train(resume_from_checkpoint, *arguments, **options)
            else:
                with tempfile.TemporaryDirectory(prefix="strata-") as folder:
                    self._resumed = _Resumed(step, folder)
                    self._resumed.put_state(_trainer_state(manager, step))
                    trained = trainer.train(folder, *arguments, **options)
            manager.wait()
            return trained
        finally:
            self._strata = self._resumed = None
            if manager is not self._strata_given:
                manager.close()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        trainer: Any = self
        if trial is not None:
            raise InvalidInput("hyper-parameter search saves many runs at the same steps: leave Strata out of it")
        trainer.store_flos()
        state, step = trainer.state, trainer.state.global_step
        if state.best_global_step == step:
            state.best_model_checkpoint = f"{FOLDER}{step}"
        for name, told in _told_by_callbacks([*trainer.callback_handler.callbacks, trainer.control]).items():
            state.stateful_callbacks[name] = told
        manager = self._at_work()
        saved = _Beside(self._train_state(all_of_it=not trainer.args.save_only_model), self._beside())
        manager.save_async(saved, step, epoch=int(state.epoch or 0), metrics=_metrics(state.log_history, step))

    def _init_training_state(self, *arguments: Any, **options: Any) -> Any:
        trainer: Any = super()
        found = trainer._init_training_state(*arguments, **options)
        if self._resumed is not None:
            self.__dict__["state"].best_model_checkpoint = self._resumed.best
        return found

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Of Strata's the model is filled together with all else, when that is ready."""
        if not self._is_resumed(resume_from_checkpoint):
            trainer: Any = super()
            trainer._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        resumed = self._resumed
        if resumed is None or checkpoint != resumed.folder:
            trainer: Any = super()
            trainer._load_optimizer_and_scheduler(checkpoint)
            return
        put_back = remembered()
        self._at_work().load(resumed.step, into=self._train_state(all_of_it=True))
        resumed.restore_random_numbers = remembered()
        put_back()  # the Trainer looks for the place in the data first

    def _load_scaler(self, checkpoint: str | None) -> None:
        if not self._is_resumed(checkpoint):
            trainer: Any = super()
            trainer._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if self._resumed is not None and self._is_resumed(checkpoint):
            self._resumed.restore_random_numbers()
        else:
            trainer: Any = super()
            trainer._load_rng_state(checkpoint)

    def _load_best_model(self) -> None:
        trainer: Any = self
        manager, name = self._at_work(), trainer.state.best_model_checkpoint
        best = int(name.removeprefix(FOLDER))
        manager.wait()
        manager.load(best, into=TrainState(trainer.model))
        logger.info("the best model, of step %d, is loaded from %s", best, manager.url)

    # -- where, and from where ---------------------------------------------------------------------------------------

    def _manager(self) -> CheckpointManager:
        trainer: Any = self
        given, args = self._strata_given, trainer.args
        if isinstance(given, CheckpointManager):
            return given
        where = args.output_dir if given is None else given
        config = CheckpointManagerConfig(retention=_retention(args))
        place = {"rank": args.process_index, "world_size": args.world_size}
        return CheckpointManager(where, job_id=self._strata_job, config=config, **place)

    def _at_work(self) -> CheckpointManager:
        if self._strata is None:
            raise InvalidInput("checkpoints are saved and loaded while train() runs")
        return self._strata

    def _is_resumed(self, checkpoint: str | None) -> bool:
        return self._resumed is not None and checkpoint == self._resumed.folder

    def _step_of(self, given: Any, manager: CheckpointManager) -> int | None:
        """None if there is nothing of Strata's to go on from."""
        trainer: Any = self
        if given is None or given is False:
            return None
        if given is not True and not isinstance(given, int):
            if not os.path.isdir(given):
                raise NotFound(f"resume_from_checkpoint is True, a step, or a folder of the Trainer's, not {given!r}")
            return None
        step = manager.latest_step() if given is True else given
        if trainer.args.world_size > 1:  # one that is committed at this moment is not everybody's latest
            step = broadcast_object_list([step])[0]
        if step is None:
            raise NotFound(f"there is no committed checkpoint in {manager.url} to resume from")
        return int(step)

    # -- what is saved -----------------------------------------------------------------------------------------------

    def _train_state(self, *, all_of_it: bool) -> TrainState:
        trainer: Any = self
        if not all_of_it:
            return TrainState(trainer.model)
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # without what accelerate puts around it
        scaler = getattr(trainer.accelerator, "scaler", None)
        return TrainState(trainer.model, optimizer, trainer.lr_scheduler, scaler, rng=True)

    def _beside(self) -> dict[str, Any]:
        trainer: Any = self
        told = dataclasses.asdict(trainer.state) | dict.fromkeys(PROCESS_FIELDS, True)
        beside = {"trainer": json.dumps(told, sort_keys=True)}
        config: Any = getattr(trainer.model, "config", None)
        if hasattr(config, "to_json_string"):
            beside["config"] = json.loads(config.to_json_string())
        return beside


class _Resumed:
    """What `train` goes on from: the step, and the folder in which the Trainer believes that it lies."""

    def __init__(self, step: int, folder: str) -> None:
        self.step, self.folder = step, folder
        self.best: str | None = None
        self.restore_random_numbers: Callable[[], None] = lambda: None

    def put_state(self, told: str) -> None:
        """The best one is no folder, which the Trainer would look for: it is put in again afterwards."""
        state = json.loads(told)
        self.best = state.get(BEST)
        Path(self.folder, STATE_FILE).write_text(json.dumps(state | {BEST: None}), "utf-8")


class _Beside:
    """A TrainState, with plain values beside it in the checkpoint."""

    def __init__(self, state: TrainState, beside: dict[str, Any]) -> None:
        self._state, self._beside = state, beside

    def strata_state(self) -> dict[str, Any]:
        return {**self._state.strata_state(), **self._beside}

    def plan_strata_load(self, outline: Outline) -> Plan:
        return self._state.plan_strata_load(outline)


class _TrainerState:
    """The Trainer's own state in a checkpoint: of the rest nothing is read."""

    told: Any = None

    def strata_state(self) -> dict[str, Any]:
        return {}

    def plan_strata_load(self, outline: Outline) -> Plan:
        self.told = outline.tree.get("trainer") if isinstance(outline.tree, dict) else None
        return Plan({}, lambda tree: None)


def _trainer_state(manager: CheckpointManager, step: int) -> str:
    told = manager.load(step, into=_TrainerState()).told
    if not isinstance(told, str):
        raise InvalidInput(f"step {step} in {manager.url} was not saved by a Trainer: load it with CheckpointManager")
    return told


def _told_by_callbacks(callbacks: list[Any]) -> dict[str, Any]:
    """One state by the name of its class, or a list where there are several."""
    found: dict[str, list[Any]] = {}
    for each in callbacks:
        if isinstance(each, ExportableState):
            found.setdefault(type(each).__name__, []).append(each.state())
    return {name: states[0] if len(states) == 1 else states for name, states in found.items()}


def _metrics(history: list[dict[str, Any]], step: int) -> dict[str, float] | None:
    """What was logged at this step."""
    told = {name: value for entry in history if entry.get("step") == step for name, value in entry.items()}
    return {
        name: float(value)
        for name, value in told.items()
        if type(value) in (int, float) and name not in ("step", "epoch") and not math.isnan(value)
    } or None


def _retention(args: Any) -> Retention:
    count: int = args.save_total_limit or 0
    if not (count and args.load_best_model_at_end and args.metric_for_best_model):
        return Retention(keep_count=count)
    metric: str = args.metric_for_best_model
    name = metric if metric.startswith("eval_") else f"eval_{metric}"
    mode: Literal["min", "max"] = "max" if args.greater_is_better else "min"
    return Retention(keep_count=count, best_metric=name, best_mode=mode, best_count=1)


def _check_arguments(args: Any, given: Any, job_id: str | None) -> None:
    if args.push_to_hub:
        raise InvalidInput("push_to_hub uploads folders, of which there are none: `strata ckpt export hf` makes one")
    if args.deepspeed or (args.fsdp and (args.fsdp_plugin_args or {}).get("fsdp_version") != 2):
        raise InvalidInput("DeepSpeed and FSDP 1 save by themselves: use FSDP 2, or leave Strata out")
    if isinstance(given, CheckpointManager) and (args.save_total_limit is not None or job_id is not None):
        raise InvalidInput("save_total_limit and job_id are for a manager made here: say them to the one you give")
