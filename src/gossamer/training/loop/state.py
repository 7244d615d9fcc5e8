# SPDX-License-Identifier: Apache-2.0
"""Everything that decides the steps to come, taken from a loop and put back into one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gossamer.errors import ArtifactError
from gossamer.training.checkpoint.layer_forms import layer_forms, restore_forms
from gossamer.training.checkpoint.optimizer import restore_optimizer
from gossamer.training.checkpoint.random_state import capture_random, restore_random

if TYPE_CHECKING:
    from gossamer.training.loop.loop import Loop


def capture_state(loop: "Loop") -> dict[str, Any] | None:
    """Weights, masks and their forms, moments, schedule, generators, counters.

    None in a process that does not write files.
    """
    memory = _memory(loop)
    states = loop.processes.states(loop)
    if states is None:
        return None
    model, optimizer, control = states
    return {
        "counters": loop.counters(),
        "forms": layer_forms(loop.model),
        "model": model,
        "optimizer": optimizer,
        "control": control,
        "best": None if loop.best is None else loop.best.state_dict(),
        "objective": None if memory is None else memory.state_dict(),
        "random": capture_random(),
    }


def restore_state(loop: "Loop", state: Any, *, keep_settings: bool) -> dict[str, Any]:
    """Bring a loop that was built alike to a captured state; its counters.

    Order: forms of layers, weights, moments, schedule; generators last, because building a model
    draws from them.
    """
    try:
        counters = read_counters(state)
        forms = state["forms"]
        # Or compact from the start; then their modes are those of the checkpoint.
        is_compact = counters["compacted"] or any(f["form"] == "compact" for f in forms.values())
        if is_compact:
            # Masks first: the schedule knows its layers as masked ones and follows from there.
            loop.control.load_state_dict(state["control"])
            restore_forms(loop.model, loop.optimizer, forms, state["model"])
        _load_model(loop, state["model"])
        restore_optimizer(loop.optimizer, state["optimizer"], keep_settings=keep_settings)
        if not is_compact:
            loop.control.load_state_dict(state["control"])
        if loop.best is not None:
            loop.best.load_state_dict(state["best"])
        memory = _memory(loop)
        if memory is not None:
            memory.load_state_dict(state["objective"])
        restore_random(state["random"])
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"checkpoint: {error} is missing or not what belongs there.") from error
    return counters


def read_counters(state: Any) -> dict[str, Any]:
    """The counters of a captured state, if each is the number it should be."""
    found = state.get("counters") if isinstance(state, dict) else None
    whole = ("step", "taken", "skipped", "in_a_row", "rate_shift", "metrics_bytes")
    right = (
        isinstance(found, dict)
        and all(type(found.get(name)) is int for name in whole)
        and all(found[name] >= 0 for name in whole if name != "rate_shift")
        and isinstance(found.get("compacted"), bool)
        and isinstance(found.get("losses"), list)
        and all(isinstance(loss, float) for loss in found["losses"])
        and isinstance(found.get("seconds"), list)
        and [type(part) for part in found["seconds"]] == [float, float]
    )
    if not right or not isinstance(found, dict):
        raise ArtifactError("checkpoint: its counters are not what a run writes.")
    return dict(found)


def _memory(loop: "Loop") -> Any:
    """The objective, if it has a state: a teacher that remembers, a loss with parameters."""
    return loop.objective if hasattr(loop.objective, "load_state_dict") else None


def _load_model(loop: "Loop", tensors: Mapping[str, Any]) -> None:
    try:
        loop.model.load_state_dict(tensors)
    except RuntimeError as error:
        raise ArtifactError(
            f"checkpoint: its weights are not those of this model ({str(error)[:300]}). Resume with"
            " the recipe and the model of that run."
        ) from error
