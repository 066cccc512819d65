"""For PyTorch. `import strata` does not import torch; this package does, and says what to install without it.

names          what a tensor is called, whatever the model is wrapped in
modules        models, and averages of them: filled in place
replication    what DDP keeps the same on all ranks, which share the work of writing it
optimizers     optimizers, by the names of their parameters
objects        anything with state_dict and load_state_dict
rng            generators of random numbers
train_state    all of it together
"""

from strata.extras import needs

with needs("torch", module="strata.torch", extra="torch"):
    import torch as _torch  # noqa: F401

from strata.torch.train_state import TrainState

__all__ = ["TrainState"]
