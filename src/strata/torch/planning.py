"""How a checkpoint is loaded into the components of a run: first a plan for all of them, then each in its turn."""

from collections.abc import Iterator, Mapping
from typing import Any

from strata.checkpoint.names import below
from strata.checkpoint.stateful import ArraySpec, Outline, Plan, lies_under
from strata.errors import CheckpointMismatch, InvalidInput
from strata.logs import get_logger
from strata.texts import some_of
from strata.torch.components import ABSENT, Component, Fit, Found, Origin
from strata.torch.modules import ModuleState
from strata.torch.names import in_model
from strata.torch.objects import ObjectState
from strata.torch.optimizers import OptimizerState
from strata.torch.paths import Path, at, name_of

logger = get_logger("strata.torch")

FORMAT = 1
ABOUT = "train_state"
"""Where a state says what it is."""


def plan(
    outline: Outline, components: Mapping[Path, Component], models: Mapping[Path, ModuleState], *, is_stage: bool
) -> Plan:
    """What is to be read, and into what. Changes nothing; what does not fit is in the report. Of one stage of many that
    is only what the checkpoint has not: what it has beside is of others."""
    kinds, arrays, origin = _kinds(outline.tree), _arrays(outline), _origin(outline, models)
    fits: dict[Path, Fit] = {}
    for path, component in components.items():
        name = name_of(path)
        found = Found(name, at(outline.tree, path), kinds.get(name), arrays, outline.report, origin)
        if found.tree is ABSENT and lies_under(name, outline.others):
            logger.warning("%s stays as it is: the checkpoint has one for each of its ranks, and none for this", name)
            fits[path] = Fit()
        else:
            fits[path] = component.fit(found)
    _leave_out_schedulers(fits, components, outline)
    held = {ABOUT, *(path[0] for path in fits)}
    outline.report.left += [key for key in outline.tree if key not in held]
    if is_stage:
        outline.report.left += outline.report.unexpected
        outline.report.unexpected.clear()
    if outline.report.left:
        logger.info("not asked for, and not loaded: %s", some_of(outline.report.left))
    targets = {name: each for fit in fits.values() for name, each in fit.targets.items()}
    return Plan(targets, lambda tree: _apply(tree, fits))


def _kinds(tree: Any) -> Mapping[str, str]:
    """The classes of what was saved; of a state that was put together by hand they are not known."""
    if not isinstance(tree, dict):
        raise CheckpointMismatch("the checkpoint was not saved from a TrainState: load it without `into`")
    about = tree.get(ABOUT, {"format": FORMAT, "kinds": {}})
    if about["format"] > FORMAT:
        raise InvalidInput(f"a newer version of Strata saved this TrainState (format {about['format']}): upgrade")
    found: Mapping[str, str] = about["kinds"]
    return found


def _arrays(outline: Outline) -> dict[str, ArraySpec]:
    """By the names they have here."""
    arrays: dict[str, ArraySpec] = {}
    for spec in outline.arrays:
        name = outline.rename(spec.name)
        first = arrays.setdefault(name, spec)
        if first is not spec:
            outline.report.mismatched.append(f"{name} ({first.name} and {spec.name} are both called so)")
    return arrays


def _origin(outline: Outline, models: Mapping[Path, ModuleState]) -> Origin:
    """The checkpoint's parameters, whose names may have been changed with those of the model."""
    here = {
        below(name_of(path), name): in_model(path, name)
        for path, model in models.items()
        for name, _ in model.parameters()
    }
    names, shapes = {}, {}
    for stored, spec in _stored_parameters(at(outline.tree, ("model",))):
        names[stored] = here.get(outline.rename(spec.name), "")
        shapes[stored] = spec.shape
    return Origin(names, shapes)


def _stored_parameters(tree: Any, above: Path = ("model",)) -> Iterator[tuple[str, ArraySpec]]:
    """Of one model, or of several by name."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if isinstance(value, ArraySpec):
            yield in_model(above, key), value
        elif len(above) == 1:
            yield from _stored_parameters(value, (*above, key))


def _leave_out_schedulers(fits: dict[Path, Fit], components: Mapping[Path, Component], outline: Outline) -> None:
    """A scheduler keeps a rate for each group of its optimizer, by position."""
    regrouped = [
        component.optimizer
        for path, component in components.items()
        if isinstance(component, OptimizerState) and fits[path].is_regrouped
    ]
    for path, component in components.items():
        if path[0] != "scheduler" or not isinstance(component, ObjectState):
            continue
        own = getattr(component.value, "optimizer", None)
        if any(own is None or own is each for each in regrouped):
            why = (
                "it keeps a rate for each group of the optimizer, and the groups are others than where it was saved: "
                "leave it out"
            )
            outline.report.mismatched.append(f"{name_of(path)} ({why})")
            fits[path] = Fit()


def _apply(tree: Any, fits: Mapping[Path, Fit]) -> None:
    done: list[str] = []
    for path, fit in fits.items():
        found = at(tree, path)
        try:
            fit.apply({} if found is ABSENT else found)
        except Exception as error:
            others = f"; {', '.join(done)} hold theirs already" if done else ""
            raise CheckpointMismatch(f"{name_of(path)} did not take what was saved of it: {error}{others}") from error
        done.append(name_of(path))
