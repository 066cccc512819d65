"""A run that is loaded goes on as if it had not stopped; one into which a checkpoint does not fit is not touched."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.checkpoint.marks import PerRank
from strata.errors import CheckpointMismatch, InvalidInput, Unstorable
from strata.storage import MemoryStorage
from strata.torch import TrainState
from tests.unit.checkpoint.states import assert_same
from tests.unit.torch.runs import SCHEDULERS, Net, Run, Samples


@pytest.fixture
def manager() -> Iterator[CheckpointManager]:
    with CheckpointManager(MemoryStorage()) as made:
        yield made


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def plain(model: nn.Module) -> nn.Module:
    return model


def compiled(model: nn.Module) -> nn.Module:
    """Wrapped, and never run: so nothing is compiled."""
    wrapped: Any = torch.compile(model, backend="eager")
    assert all(name.startswith("_orig_mod.") for name, _ in wrapped.named_parameters())
    return wrapped  # type: ignore[no-any-return]


def partly_compiled(model: nn.Module) -> nn.Module:
    model.module = torch.compile(model.module, backend="eager")  # type: ignore[arg-type, assignment]
    return model


def ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def compiled_ddp(model: nn.Module) -> nn.Module:
    return compiled(ddp(model))


# -- going on ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path, scheduler: str) -> None:
    with CheckpointManager(tmp_path) as manager:
        first = Run(1, scheduler)
        first.steps(5)
        manager.save_async(first.state, step=5)
        losses, ended = first.steps(5), _copied(first.state.strata_state())
    with CheckpointManager(tmp_path) as manager:
        second = Run(2, scheduler)
        assert manager.load(into=second.state) is second.state
        assert second.steps(5) == losses
        assert_same(_copied(second.state.strata_state()), ended)
        assert second.net.module[3].calls == 10


def test_a_run_goes_back_to_what_it_was(manager: CheckpointManager) -> None:
    run = Run(1)
    run.steps(5)
    manager.save(run.state, step=5)
    losses = run.steps(5)
    asyncio.run(manager.load_async(into=run.state))
    assert run.steps(5) == losses


def test_a_run_goes_back_to_before_its_first_step(manager: CheckpointManager) -> None:
    run = Run(1)
    manager.save(run.state, step=0)
    losses = run.steps(5)
    manager.load(into=run.state)
    assert not run.optimizer.state
    assert run.steps(5) == losses


@pytest.mark.slow
@pytest.mark.parametrize("before", [plain, compiled, partly_compiled, nn.DataParallel, ddp, compiled_ddp])
@pytest.mark.parametrize("after", [plain, compiled_ddp])
def test_it_loads_under_any_wrapper(manager: CheckpointManager, group: None, before: Any, after: Any) -> None:
    first, second = Run(1, wrap=before), Run(2, wrap=after)
    with torch.compiler.set_stance("force_eager"):
        first.steps(2)
        manager.save(first.state, step=2)
        expected = first.steps(2), _copied(first.state.strata_state())
        assert manager.load(keys="model/*")["model"].keys() == Net().state_dict().keys()
        manager.load(into=second.state)
        assert_same((second.steps(2), _copied(second.state.strata_state())), expected)


def test_names_are_those_of_the_parameters(tmp_path: Path) -> None:
    run = Run(1, wrap=compiled)
    run.steps(1)
    with CheckpointManager(tmp_path) as manager:
        manager.save(run.state, step=1)
        tree = manager.load()
    names = {name for file in tmp_path.rglob("*.safetensors") for name in load_file(file)}
    assert {"model/first.weight", "model/module.1.running_mean", "ema/first.weight", "ema/n_averaged"} <= names
    assert {"optimizer/state/first.weight/exp_avg", "optimizer/state/module.0.bias/step"} <= names
    assert "model/last.weight" not in names  # stored once, as first.weight
    assert tree["model"]["last.weight"] is tree["model"]["first.weight"]
    assert not [name for name in names if "scratch" in name or "_orig_mod" in name]
    (group,) = tree["optimizer"]["groups"].values()
    assert group["params"] == [
        *("first.weight", "first.bias", "module.0.weight", "module.0.bias", "module.1.weight", "module.1.bias"),
        *("unused.weight", "unused.bias", "last.bias"),
    ]
    assert "unused.weight" not in tree["optimizer"]["state"]


def test_parameters_are_filled_where_they_are(manager: CheckpointManager) -> None:
    first, second = Run(1), Run(2)
    first.steps(2)
    second.steps(1)
    manager.save(first.state, step=2)
    places = {name: tensor.data_ptr() for name, tensor in _tensors(second)}
    manager.load(into=second.state)
    assert {name: tensor.data_ptr() for name, tensor in _tensors(second)} == places
    assert second.net.last.weight is second.net.first.weight


def _tensors(run: Run) -> Iterator[tuple[str, torch.Tensor]]:
    yield from run.net.named_parameters()
    yield from run.net.named_buffers()
    yield from run.ema.named_parameters()
    for number, state in enumerate(run.optimizer.state.values()):
        yield from ((f"{number}.{key}", each) for key, each in state.items())


MEMORY = """
import resource, sys
import torch
from strata.checkpoint import CheckpointManager
from strata.torch import TrainState

model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8)))
with CheckpointManager(sys.argv[1]) as manager:
    if sys.argv[2] == "save":
        manager.save(TrainState(model), step=1)
    else:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        manager.load(into=TrainState(model))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts in other units elsewhere")
def test_no_second_copy_of_the_model_is_in_memory(tmp_path: Path) -> None:
    _, done = (
        subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path), what], check=True, capture_output=True)
        for what in ("save", "load")
    )
    assert int(done.stdout) < 64 << 10  # KiB; the model takes twice as much


UNPICKLED = """
import sys
seen = []
sys.addaudithook(lambda event, arguments: seen.append(arguments) if event == "pickle.find_class" else None)

from strata.checkpoint import CheckpointManager
from tests.unit.torch.runs import Run

run = Run(2)
seen.clear()
with CheckpointManager(sys.argv[1]) as manager:
    manager.load(into=run.state)
assert run.samples.at == 3
assert not seen, seen
"""


@pytest.mark.slow
def test_nothing_is_pickled(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        run = Run(1)
        run.steps(3)
        manager.save(run.state, step=3)
    kinds = {path.suffix for path in tmp_path.glob("default/checkpoints/step_3/*")}
    assert kinds == {".json", ".safetensors"}
    subprocess.run([sys.executable, "-c", UNPICKLED, str(tmp_path)], check=True, cwd=Path(__file__).parents[3])


# -- what does not fit -------------------------------------------------------------------------------------------------


class Wider(Net):
    """Of another shape in one place, and with a layer more and one less."""

    def __init__(self) -> None:
        super().__init__()
        self.module[0] = nn.Linear(8, 8, bias=False)
        self.last.bias = nn.Parameter(torch.zeros(1))
        self.more = nn.Linear(2, 2)


def wider() -> tuple[Wider, torch.optim.Optimizer, TrainState]:
    model = Wider()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.5)
    return model, optimizer, TrainState(model, optimizer, rng=True)


def test_what_does_not_fit_is_named_and_nothing_is_changed(manager: CheckpointManager) -> None:
    run = Run(1)
    run.steps(2)
    manager.save(run.state, step=2)
    _, _, state = wider()
    before = _copied(state.strata_state())
    with pytest.raises(CheckpointMismatch) as raised:
        manager.load(into=state)
    told = str(raised.value)
    for part in (
        "model/more.weight",
        "optimizer/state/more.weight",
        "unexpected: model/module.0.bias",
        "model/last.bias (float32[8] in the checkpoint, float32[1] here)",
        "rng/noise",
        "strict=False",
    ):
        assert part in told
    assert_same(state.strata_state(), before)


def test_what_fits_can_be_taken_alone(manager: CheckpointManager) -> None:
    run = Run(1)
    run.steps(2)
    manager.save(run.state, step=2)
    model, optimizer, state = wider()
    more = model.more.weight
    more.grad = torch.ones(2, 2)
    optimizer.step()
    own = optimizer.state[more]["exp_avg"].clone()
    manager.load(into=state, strict=False)
    assert torch.equal(optimizer.state[more]["exp_avg"], own)
    assert torch.equal(model.first.weight, run.net.first.weight)
    moved = optimizer.state[model.first.weight]["exp_avg"]
    assert torch.equal(moved, run.optimizer.state[run.net.first.weight]["exp_avg"])
    assert manager.last_load.missing == [
        *("model/more.weight", "model/more.bias"),
        *("optimizer/state/more.weight", "optimizer/state/more.bias"),
    ]
    assert manager.last_load.left == ["ema", "scheduler", "scaler", "loader", "extra"]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def _copied(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.clone()
    if isinstance(tree, dict):
        return {key: _copied(each) for key, each in tree.items()}
    if isinstance(tree, PerRank):
        return PerRank(_copied(tree.value))
    return [_copied(each) for each in tree] if isinstance(tree, list) else tree


def test_what_is_held_must_be_there(manager: CheckpointManager) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    manager.save(TrainState(model), step=1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = TrainState(model, optimizer, scheduler, ema=AveragedModel(model), loader=Samples(), rng=True)
    with pytest.raises(CheckpointMismatch, match="5 missing: ema, optimizer, scheduler, loader, rng"):
        manager.load(into=state)


def test_what_is_not_held_is_left(manager: CheckpointManager) -> None:
    run = Run(1)
    run.steps(2)
    manager.save(run.state, step=2)
    torch.manual_seed(7)
    model = Net()
    manager.load(into=TrainState(model))
    assert_same(dict(model.state_dict()), dict(run.net.state_dict()))
    assert manager.last_load.left == ["ema", "optimizer", "scheduler", "scaler", "loader", "extra", "rng"]
    assert not manager.last_load
    drawn = torch.rand(3)
    torch.manual_seed(7)
    Net()
    assert torch.equal(torch.rand(3), drawn)


def test_a_component_that_refuses_is_named(manager: CheckpointManager) -> None:
    class Refuses(Samples):
        def load_state_dict(self, state: Any) -> None:
            raise KeyError("shard")

    Refuses.__name__ = "Samples"
    manager.save(TrainState(Net(), loader=Samples()), step=1)
    with pytest.raises(CheckpointMismatch, match="loader did not take what was saved of it: 'shard'; model hold"):
        manager.load(into=TrainState(Net(), loader=Refuses()))


def test_names_of_the_model_can_be_changed_and_the_optimizer_follows(manager: CheckpointManager) -> None:
    class Renamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top, self.body = nn.Linear(2, 2), nn.Linear(2, 2)

    class Old(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

    old, new = Old(), Renamed()
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (old, new))
    (old.head(old.body(torch.ones(1, 2))).sum()).backward()
    first.step()
    manager.save(TrainState(old, first), step=1)
    with pytest.raises(CheckpointMismatch, match="unexpected: model/head"):
        manager.load(into=TrainState(new, second))
    manager.load(into=TrainState(new, second), rename=lambda name: name.replace("model/head.", "model/top."))
    assert torch.equal(new.top.weight, old.head.weight)
    for mine, theirs in ((new.top, old.head), (new.body, old.body)):
        assert torch.equal(second.state[mine.weight]["momentum_buffer"], first.state[theirs.weight]["momentum_buffer"])


def test_the_average_can_be_loaded_as_the_model(manager: CheckpointManager) -> None:
    run, model = Run(1), Net()
    run.steps(2)
    manager.save(TrainState(run.model, ema=run.ema), step=1)
    names = {"model/": "raw/", "ema/n_averaged": "count", "ema/": "model/"}
    with pytest.raises(CheckpointMismatch, match=r"module\.3\._extra_state"):
        manager.load(into=TrainState(model), rename=names)
    manager.load(into=TrainState(model), rename=names, strict=False)
    assert torch.equal(model.first.weight, run.ema.get_parameter("module.first.weight"))


def test_a_state_that_was_put_together_by_hand_loads_as_far_as_it_says_what_it_is(manager: CheckpointManager) -> None:
    run = Run(1)
    run.steps(1)
    manager.save({"model": run.net.state_dict(), "optimizer": run.optimizer.state_dict()}, step=1)
    model = Net()
    manager.load(into=TrainState(model))
    assert_same(dict(model.state_dict()), dict(run.net.state_dict()))
    with pytest.raises(CheckpointMismatch, match=r"optimizer \(not saved by a TrainState"):
        manager.load(into=TrainState(model, torch.optim.AdamW(model.parameters())))
    manager.save([1, 2], step=2)
    with pytest.raises(CheckpointMismatch, match="not saved from a TrainState"):
        manager.load(into=TrainState(model))


def test_a_newer_format_is_refused(manager: CheckpointManager) -> None:
    manager.save({"train_state": {"format": 2, "kinds": {}}, "model": {}}, step=1)
    with pytest.raises(InvalidInput, match="newer version of Strata"):
        manager.load(into=TrainState(Net()))


# -- several, and what else --------------------------------------------------------------------------------------------


def test_several_models_and_optimizers_go_by_name(manager: CheckpointManager) -> None:
    def made(seed: int) -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer], TrainState]:
        torch.manual_seed(seed)
        models: dict[str, nn.Module] = {"actor": nn.Linear(2, 2), "critic": nn.Sequential(nn.Linear(2, 1))}
        optimizers: dict[str, torch.optim.Optimizer] = {
            "fast": torch.optim.Adam(models["actor"].parameters()),
            "both": torch.optim.SGD([p for m in models.values() for p in m.parameters()], lr=0.1, momentum=0.9),
        }
        schedulers = {name: torch.optim.lr_scheduler.StepLR(each, 1) for name, each in optimizers.items()}
        return models, optimizers, TrainState(models, optimizers, schedulers)

    models, optimizers, state = made(1)
    (models["critic"](models["actor"](torch.ones(1, 2)))).sum().backward()
    for optimizer in optimizers.values():
        optimizer.step()
    manager.save(state, step=1)
    tree = manager.load()
    assert list(tree["model"]) == ["actor", "critic"]
    assert list(tree["optimizer"]["both"]["state"]) == [
        "actor.weight",
        "actor.bias",
        "critic.0.weight",
        "critic.0.bias",
    ]
    assert tree["train_state"]["kinds"]["optimizer/fast"] == "Adam"
    _, _, other = made(2)
    manager.load(into=other)
    assert_same(other.strata_state(), state.strata_state())
    manager.load(into=TrainState({"critic": models["critic"]}), strict=True)


def test_extra_values_and_objects_come_back_in_the_same_dict(manager: CheckpointManager) -> None:
    window, metric = torch.arange(3.0), Samples(4)
    extra: dict[str, Any] = {"best": 0.5, "window": window, "metric": metric, "head": nn.Linear(2, 2), "list": [1]}
    state = TrainState(Net(), extra=extra)
    manager.save(state, step=1)
    head = extra["head"].weight.clone()
    window.zero_()
    metric.seed, extra["best"], extra["list"], extra["later"] = 9, 9.0, None, "stays"
    nn.init.zeros_(extra["head"].weight)
    manager.load(into=state)
    assert (state.extra is extra, extra["window"] is window, extra["metric"] is metric) == (True, True, True)
    assert (extra["best"], extra["list"], extra["later"], metric.seed) == (0.5, [1], "stays", 4)
    assert torch.equal(window, torch.arange(3.0))
    assert torch.equal(extra["head"].weight, head)
    fresh: dict[str, Any] = {}
    manager.load(into=TrainState(Net(), extra=fresh), strict=False)
    assert (fresh["best"], fresh["metric"]) == (0.5, {"seed": 4, "at": 0})
    state = TrainState(Net())
    state.extra["best"] = 1.0
    manager.load(into=state)
    assert state.extra["best"] == 0.5
    with pytest.raises(CheckpointMismatch, match="missing: extra/other"):
        manager.load(into=TrainState(Net(), extra={"other": Samples()}))


def test_what_cannot_be_stored_is_refused_by_name(manager: CheckpointManager) -> None:
    with pytest.raises(Unstorable, match=r"extra/clock: a builtins\.object"):
        manager.check(TrainState(Net(), extra={"clock": object()}))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"model": Net().state_dict()}, "model first.weight must be a torch.nn.Module, not a Tensor"),
        ({"model": [Net()]}, "give several by name"),
        ({"model": {1: Net()}}, "1 is no name"),
        ({"optimizer": Net().parameters()}, "must be a torch.optim.Optimizer, not a generator"),
        ({"scheduler": lambda step: step}, "a function has no state_dict"),
        ({"loader": torch.utils.data.DataLoader([1])}, "a DataLoader has no state_dict.*StatefulDataLoader"),  # type: ignore[arg-type]
        ({"ema": 3}, "ema: a int has no state_dict"),
        ({"rng": {"mine": 3}}, "'mine' must be a generator"),
        ({"rng": {"torch": torch.Generator()}}, "stored anyway"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_once(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        TrainState(**{"model": Net(), **arguments})


def test_it_says_what_it_holds() -> None:
    run = Run(1)
    assert repr(run.state) == (
        "TrainState(model=Net, optimizer=AdamW, scheduler=OneCycleLR, scaler=GradScaler, ema=AveragedModel, "
        "loader=Samples, rng, extra)"
    )
    assert repr(TrainState({"a": Net(), "b": nn.Linear(1, 1)})) == "TrainState(model={a: Net, b: Linear})"


@pytest.mark.slow
def test_importing_strata_imports_no_torch() -> None:
    program = "import sys, strata; assert 'torch' not in sys.modules; import strata.torch; strata.torch.TrainState"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_reader_loads_it_too(tmp_path: Path) -> None:
    run = Run(1)
    with CheckpointManager(tmp_path) as manager, CheckpointReader(tmp_path) as reader:
        manager.save(run.state, step=1)
        model = Net()
        reader.load(into=TrainState(model))
    assert_same(dict(model.state_dict()), dict(run.net.state_dict()))
