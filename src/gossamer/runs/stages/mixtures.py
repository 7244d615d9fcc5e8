# SPDX-License-Identifier: Apache-2.0
"""`upcycle`, `moefy` and `fewer_experts` stages of a recipe: models get experts, or lose some."""

from collections.abc import Mapping

from torch import nn

from gossamer.pruning.mixtures import FewerSettings, MoefySettings, fewer_experts, moefy
from gossamer.recipes.stages.mixtures import FewerExperts, Moefy, Upcycle
from gossamer.runs.stages.base import StageInput, StageOutcome, same_fields
from gossamer.training.growth import upcycle

_SHOWN = 4


def run_upcycle_stage(model: nn.Module, step: Upcycle, given: StageInput) -> StageOutcome:
    """Make experts of copies, in place."""
    before = _size(model)
    upcycle(model, **step.model_dump())
    note = (
        f"upcycle: a {type(model).__name__} with {step.experts} experts in every block,"
        f" {step.top_k} of them for each token, and {_size(model) / before:.2f} times the weights."
        " It computes what it did until it is trained."
    )
    return StageOutcome([note], changed_shapes=True)


def run_moefy_stage(model: nn.Module, step: Moefy, given: StageInput) -> StageOutcome:
    """Deal out neurons to experts, in place."""
    settings = MoefySettings(**same_fields(step, MoefySettings))
    found = moefy(model, given.needed_batches("a moefy stage"), settings, given.tick)
    worst = min(found.given, key=found.given.__getitem__)
    mean, best = (sum(part.values()) / len(part) for part in (found.given, found.best))
    notes = [
        f"moefy: {found.active:.0%} of the neurons of every block are active for a token. On the"
        f" data they give {mean:.1%} of what all give ({best:.1%} if the best were chosen), and"
        f" {found.given[worst]:.1%} in {worst}, the worst."
    ]
    return StageOutcome(notes + _unseen("moefy", found.unseen, "was never chosen"), [], True)


def run_fewer_experts_stage(
    model: nn.Module, step: FewerExperts, given: StageInput
) -> StageOutcome:
    """Drop or merge experts, in place."""
    before = _size(model)
    settings = FewerSettings(**same_fields(step, FewerSettings))
    batches = given.needed_batches("a fewer_experts stage")
    found = fewer_experts(model, batches, settings, given.tick)
    left = sorted({len(kept) for kept in found.kept.values()})
    mean = sum(found.given.values()) / len(found.given)
    what = "dropped" if step.how == "drop" else "merged into them"
    notes = [
        f"fewer_experts: {left[0]} experts are left in each of {len(found.kept)} mixtures, the"
        f" others are {what}; those that are left gave {mean:.1%} of what all gave on the data."
        f" {_size(model) / before:.1%} of all parameters are left."
    ]
    return StageOutcome(notes + _unseen("fewer_experts", found.unseen, "saw no token"), [], True)


def _unseen(stage: str, unseen: Mapping[str, list[int]], what: str) -> list[str]:
    """What the data does not tell."""
    notes = []
    for name, experts in list(unseen.items())[:_SHOWN]:
        shown = ", ".join(map(str, experts[:_SHOWN])) + (", ..." if experts[_SHOWN:] else "")
        notes.append(f"{stage}: {name}: expert {shown} {what} on the data ({len(experts)} in all).")
    if len(unseen) > _SHOWN:
        notes.append(f"{stage}: so did experts of {len(unseen) - _SHOWN} more blocks.")
    return notes


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
