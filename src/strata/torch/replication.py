"""What DDP keeps the same on all of its ranks: so each of them writes a share of it.

The parameters of a model that is wrapped in it, since each step is made with the mean of all gradients; and what an
optimizer of torch's own keeps in the shape of one. Buffers may differ. So may all of it under a hook of the user's,
which need not give all ranks the same gradients; and what other optimizers keep, which some share out among the ranks.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from strata.checkpoint.marks import ReplicatedOver
from strata.torch.names import inner


class Replicas(NamedTuple):
    """Parameters, by their ids, that are the same on so many ranks."""

    ranks: int = 1
    parameters: Mapping[int, nn.Parameter] = {}

    def marked(self, value: Any, parameter: nn.Parameter | None) -> Any:
        """What belongs to a parameter, if it is its value, or is kept in its shape."""
        if parameter is None or id(parameter) not in self.parameters or not isinstance(value, torch.Tensor):
            return value
        return ReplicatedOver(value, self.ranks) if value.shape == parameter.shape else value

    def kept_by(self, optimizer: torch.optim.Optimizer) -> "Replicas":
        """Those of which each rank's optimizer keeps the same: none, unless it is known that it steps all of them."""
        own = {id(each) for group in optimizer.param_groups for each in group["params"]}
        trained = {name for name, each in self.parameters.items() if each.requires_grad}
        return self if type(optimizer).__module__.startswith("torch.optim.") and trained <= own else Replicas()


def replicas_in(module: nn.Module) -> Replicas:
    found = _ddp(module)
    if found is None or found.process_group.size() == 1 or getattr(found, "_comm_hooks", None) != []:
        return Replicas()
    named = found.module.named_parameters()
    parameters = {id(each): each for name, each in named if name not in found.parameters_to_ignore}
    return Replicas(found.process_group.size(), parameters)


def _ddp(module: nn.Module) -> DistributedDataParallel | None:
    """It, or what is inside of other wrappers. An average of a model is made on each rank by itself."""
    here: Any = module
    while here is not None and not isinstance(here, DistributedDataParallel):
        within = None if isinstance(here, AveragedModel) else inner(here)
        here = None if within is None else within[1]
    return here
