"""Models in DDP: each rank writes a share of what is the same on all, and nothing else is taken to be."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig
from strata.checkpoint.marks import ReplicatedOver
from strata.errors import RankFailed
from strata.storage import MemoryStorage
from strata.torch import TrainState
from tests.unit.checkpoint.crews import Crew
from tests.unit.checkpoint.spread import rank_of
from tests.unit.checkpoint.states import assert_same

RANKS = 3
WIDTH = 900
"""Of a weight that is long enough for a share of each."""


class Net(nn.Module):
    """With a parameter under two names, and a buffer."""

    seen: torch.Tensor

    def __init__(self, rank: int = 0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.large = nn.Linear(WIDTH, WIDTH)
        self.small = nn.Linear(WIDTH, 2)
        self.tied = self.small
        self.register_buffer("seen", torch.full((2,), float(rank)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.small(self.large(x).tanh())
        return found


class Own(torch.optim.SGD):
    """Not torch's own: whether it keeps the same on all ranks is not known."""


def sgd(parameters: Iterable[Any], kind: type[torch.optim.SGD] = torch.optim.SGD) -> torch.optim.Optimizer:
    return kind(parameters, lr=0.1, momentum=0.9)


Made = tuple[nn.Module, torch.optim.Optimizer]


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> Made:
    """The same step on all ranks, as DDP would make it."""
    net = model.module if isinstance(model, DistributedDataParallel) else model
    net(torch.ones(2, WIDTH)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def in_ddp(rank: int) -> Made:
    model = DistributedDataParallel(Net(rank), init_sync=False)
    return stepped(model, sgd(model.parameters()))


def on_each(make: Callable[[int], Any], ranks: int = RANKS) -> list[Any]:
    """What is made on each rank, in its turn."""
    found = []
    for rank in range(ranks):
        with rank_of(rank, (ranks,)):
            found.append(make(rank))
    return found


def marks(state: TrainState) -> set[str]:
    """What is marked."""
    tree = state.strata_state()
    kept = {f"{name}/{key}": each for name, own in tree["optimizer"]["state"].items() for key, each in own.items()}
    return {name for name, each in {**tree["model"], **kept}.items() if isinstance(each, ReplicatedOver)}


WEIGHTS = {f"{layer}.{what}" for layer in ("large", "small", "tied") for what in ("weight", "bias")}
MOMENTA = {f"{layer}.{what}/momentum_buffer" for layer in ("large", "small") for what in ("weight", "bias")}


def test_each_rank_writes_a_share_and_any_number_loads_them() -> None:
    storage, ranks = MemoryStorage(), on_each(in_ddp)
    with Crew(storage, RANKS) as crew:
        (note,) = crew.save([TrainState(*made) for made in ranks], 1)[0].notes[:1]
        assert " for model/seen:" in note
        written = [part.written_bytes for part in crew.managers[0].describe().parts]
        assert max(written) < 1.1 * min(written)
        assert sum(written) < 1.1 * 2 * 4 * WIDTH**2
    model = Net(9)
    optimizer = sgd(model.parameters())
    with CheckpointManager(storage) as manager:
        manager.load(into=TrainState(model, optimizer))
    others = on_each(in_ddp, 2)
    with Crew(storage, 2, "later") as crew:
        crew.each(lambda rank, manager: manager.load(into=TrainState(*others[rank])))
    for made in ((model, optimizer), *others):
        for own, theirs in zip(tensors(*made), tensors(*ranks[0]), strict=True):
            assert torch.equal(own, theirs)


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    kept = (value for own in optimizer.state_dict()["state"].values() for value in own.values())
    return [*model.state_dict().values(), *kept]


def test_what_differs_all_the_same_is_refused_by_name() -> None:
    ranks = on_each(in_ddp)
    with torch.no_grad():
        ranks[1][0].module.large.bias[7] += 1
    with (
        Crew(MemoryStorage(), RANKS, config=CheckpointManagerConfig(ranks_seconds=5)) as crew,
        pytest.raises(
            RankFailed, match=r"rank 1 on .* for model/large.bias, which is marked Replicated, as parameters"
        ),
    ):
        crew.save([TrainState(*made) for made in ranks], 1)


def test_one_rank_alone_stores_all_of_it() -> None:
    model, optimizer = on_each(in_ddp)[0]
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save(TrainState(model, optimizer), step=1)
        assert_same(dict(manager.load()["model"]), dict(model.module.state_dict()))


def test_parameters_are_marked_and_what_is_kept_in_their_shape() -> None:
    with rank_of(0, (RANKS,)):
        model, optimizer = in_ddp(0)
        assert marks(TrainState(model, optimizer)) == WEIGHTS | MOMENTA
        assert marks(TrainState(torch.compile(model, backend="eager"), optimizer)) == WEIGHTS | MOMENTA  # type: ignore[arg-type]
        assert marks(TrainState(model.get_submodule("module"), optimizer)) == set()
        average = TrainState(model, optimizer, ema=AveragedModel(model)).strata_state()["ema"]
        assert not any(isinstance(each, ReplicatedOver) for each in average.values())


def test_of_other_optimizers_nothing_is_marked() -> None:
    with rank_of(0, (RANKS,)):
        model = DistributedDataParallel(Net(), init_sync=False)
        assert marks(TrainState(*stepped(model, sgd(model.parameters(), Own)))) == WEIGHTS
        assert marks(TrainState(*stepped(model, sgd(model.module.large.parameters())))) == WEIGHTS
        model.module.small.requires_grad_(False)
        assert marks(TrainState(*stepped(model, sgd(model.module.large.parameters())))) > WEIGHTS


def test_a_hook_may_give_each_rank_other_gradients() -> None:
    with rank_of(0, (RANKS,)):
        model, optimizer = in_ddp(0)
        model.register_comm_hook(None, lambda state, bucket: bucket.buffer())  # type: ignore[operator]
        assert marks(TrainState(model, optimizer)) == set()


def test_what_is_left_to_the_user_is_not_marked() -> None:
    with rank_of(0, (RANKS,)):
        net = Net()
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["large.weight"])
        model = DistributedDataParallel(net, init_sync=False)
        found = marks(TrainState(*stepped(model, sgd(model.parameters()))))
        assert found == WEIGHTS - {"large.weight"} | MOMENTA - {"large.weight/momentum_buffer"}
