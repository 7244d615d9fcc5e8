# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model are pruned.

Start with `find_targets`: users name layers by rules (a class name, a glob, a regular expression),
and get one `Target` per weight, or an error that says why a layer cannot be pruned.
"""

import difflib
import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from gossamer.errors import InputError, TargetError
from gossamer.nn.layer_kinds import kind_of
from gossamer.nn.layer_weights import Holders, holders_of
from gossamer.nn.prunable import EMBEDDINGS, PRUNABLE, is_head, why_not_prunable

__all__ = ["Rules", "Target", "find_targets", "match"]

Rules = str | Sequence[str] | None
# A name that is less like the rule than this is no help.
_ALIKE = 0.75
_SHOWN = 8


def as_rules(rules: Rules, where: str) -> list[str]:
    """The rules as a list of non-empty strings."""
    if rules is None:
        return []
    listed = [rules] if isinstance(rules, str) else list(rules)
    for rule in listed:
        if not isinstance(rule, str) or not rule:
            raise TargetError(f"{where}: expected module names, globs or 're:...', got {rule!r}.")
    return listed


def match(rule: str, modules: Mapping[str, nn.Module], where: str) -> list[str]:
    """Names the rule selects; an error with the closest name if there is none.

    An exact name selects that module alone.
    """
    if rule.startswith("re:"):
        try:
            expression = re.compile(rule.removeprefix("re:"))
        except re.error as error:
            raise TargetError(f"{where}: {rule!r} is not a regular expression: {error}.") from error
        names = [name for name in modules if expression.match(name)]
    elif rule in modules:
        names = [rule]
    else:
        names = [
            name
            for name, module in modules.items()
            if any(kind.__name__ == rule for kind in type(module).__mro__)
            or fnmatch.fnmatchcase(name, rule)
        ]
    if not names:
        raise TargetError(
            f"{where}: {rule!r} matched 0 of {len(modules)} modules. {suggestion(rule, modules)}"
        )
    return names


def inside(container: str, modules: Mapping[str, nn.Module]) -> list[str]:
    """The names of `container` and of everything below it."""
    return [name for name in modules if f"{name}.".startswith(f"{container}.") or not container]


def suggestion(rule: str, modules: Mapping[str, nn.Module]) -> str:
    """The name most like the rule, globs and regex signs aside; without one, what there is."""
    wanted = re.sub(r"[^\w.]", "", rule.removeprefix("re:")).strip(".").lower()

    def likeness(name: str) -> float:
        candidates = (name.lower(), name.rsplit(".", 1)[-1].lower())
        return max(difflib.SequenceMatcher(None, wanted, text).ratio() for text in candidates)

    classes = {type(module).__name__: None for name, module in modules.items() if name}
    names = [name for name in [*modules, *classes] if name]
    if not names:
        return "The model has no layers."
    best = max(names, key=likeness)
    if likeness(best) >= _ALIKE:
        return f"Closest: {best}."
    # Layers themselves, not the containers around them.
    leaves = [name for name, module in modules.items() if name and not any(module.children())]
    return (
        f"The model has layers {_some(leaves)} of classes {_some(list(classes))}; write a name, a"
        " class, a glob such as '*.0', or re: and a regular expression."
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN))


# A layer of one of the kinds that can be sparse, ordinary or masked.
PrunableLayer = Any


@dataclass(frozen=True)
class Target:
    """One weight to prune.

    Attributes:
        name: dotted name of the layer, the first one if it is registered several times.
        module: the layer.
        twins: other layers that hold the very same weight; they get the same mask.
    """

    name: str
    module: PrunableLayer
    twins: tuple[tuple[str, PrunableLayer], ...] = ()

    @property
    def weight(self) -> nn.Parameter:
        """The Parameter to prune, dense."""
        weight: nn.Parameter = self.module._parameters["weight"]
        return weight

    @property
    def mask(self) -> torch.Tensor | None:
        """Bool [R, K], the mask that the layer has, no copy; None for a dense layer."""
        mask: torch.Tensor | None = self.module._buffers.get("_mask")
        return mask


def find_targets(model: nn.Module, targets: Rules = None, ignore: Rules = None) -> list[Target]:
    """Layers to prune, in the order of the model; tied weights once.

    Default: every Linear and Conv2d, except one tied to an embedding or whose last path component
    is lm_head, head or classifier.

    Args:
        model: any module.
        targets: rules of `gossamer.pruning.targets` that replace the default.
        ignore: rules that are taken away from it.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected a torch.nn.Module, got {type(model).__name__}.")
    modules = dict(model.named_modules(remove_duplicate=False))
    holders = holders_of(model)
    if targets is None:
        embedded = {
            param
            for param, held_by in holders.items()
            if any(isinstance(holder, EMBEDDINGS) for _, holder in held_by)
        }
        names = [
            name
            for name, module in modules.items()
            if kind_of(module, has_masks=True)
            and not is_head(name)
            and module._parameters.get("weight") not in embedded
        ]
    else:
        names = _targeted(model, modules, as_rules(targets, "targets"))
    ignored = _ignored(modules, as_rules(ignore, "ignore"))
    names = [name for name in names if name not in ignored]
    found = list(_unique_targets(modules, names, holders))
    if not found:
        raise TargetError(_nothing_found(modules))
    _check_memory(found, holders)
    return found


def _check_memory(targets: list[Target], holders: Holders) -> None:
    """Refuse a weight whose memory another Parameter holds, too: zeros would appear in both."""
    weights = {target.weight: target.name for target in targets}
    places = [(span, param) for param in holders if (span := _span(param)) is not None]
    reach, owner = 0, None
    for (start, end), param in sorted(places, key=lambda place: place[0]):
        if start < reach and owner is not None and not weights.keys().isdisjoint((owner, param)):
            target, other = (param, owner) if param in weights else (owner, param)
            raise TargetError(
                f"{weights[target]}: cannot be pruned: its weight shares memory with another"
                f" Parameter, of {holders[other][0][0] or 'the model itself'}, which would get its"
                " zeros. Give it its own: layer.weight ="
                " torch.nn.Parameter(layer.weight.detach().clone()); or add it to ignore=[...]."
            )
        if end > reach:
            reach, owner = end, param


def _span(param: nn.Parameter) -> tuple[int, int] | None:
    """First address and the one behind the last; None for what has no memory."""
    if isinstance(param, UninitializedParameter) or not param.numel() or param.device.type != "cpu":
        return None
    try:
        start = param.data_ptr()
    except RuntimeError:  # fake tensors and the like
        return None
    last = sum(
        (size - 1) * stride for size, stride in zip(param.shape, param.stride(), strict=True)
    )
    return (start, start + (last + 1) * param.element_size()) if start else None


def _targeted(model: nn.Module, modules: dict[str, nn.Module], rules: list[str]) -> list[str]:
    chosen: set[str] = set()
    parameters = dict(model.named_parameters())
    for rule in rules:
        if rule in parameters:
            raise TargetError(
                f"targets: {rule!r} is a Parameter. Only the weights of Linear and Conv2d layers"
                " can be pruned; name the layer."
            )
        names = match(rule, modules, "targets")
        if rule in modules and not kind_of(modules[rule], has_masks=True):
            if isinstance(modules[rule], nn.MultiheadAttention):
                raise TargetError(
                    f"targets: {rule!r} is a MultiheadAttention, whose q, k and v weights"
                    " (in_proj_weight) are no Linear layer and cannot be pruned. Name"
                    f" {rule + '.out_proj'!r} to prune its output projection only."
                )
            names = inside(rule, modules)
        prunable = [n for n in names if kind_of(modules[n], has_masks=True)]
        if not prunable:
            first = names[0]
            raise TargetError(
                f"targets: {rule!r} matched {len(names)} modules, none of which can be pruned"
                f" ({first or 'the model'}: {type(modules[first]).__name__})."
                " Only Linear and Conv2d layers can."
            )
        chosen.update(prunable)
    return [name for name in modules if name in chosen]


def _ignored(modules: dict[str, nn.Module], rules: list[str]) -> set[str]:
    ignored: set[str] = set()
    for rule in rules:
        names = match(rule, modules, "ignore")
        if rule in modules:
            names = inside(rule, modules)
        # A module registered under two names is ignored under both.
        same = {id(modules[name]) for name in names}
        ignored.update(name for name, module in modules.items() if id(module) in same)
    return ignored


def _unique_targets(
    modules: dict[str, nn.Module], names: list[str], holders: Holders
) -> Iterator[Target]:
    chosen = {id(modules[name]) for name in names}
    seen: set[nn.Parameter] = set()
    for name in names:
        module = modules[name]
        reason = why_not_prunable(module)
        if reason is not None:
            raise TargetError(f"{name}: cannot be pruned: {reason}; or add it to ignore=[...].")
        if not name:
            raise TargetError(
                f"the model is itself one {type(module).__name__} and cannot be replaced in place."
                " Wrap it: model = torch.nn.Sequential(model)."
            )
        weight = Target(name, module).weight
        if weight in seen:
            continue
        seen.add(weight)
        twins = [twin for twin in holders[weight] if twin[1] is not module]
        for other_name, other in twins:
            why = why_not_prunable(other)
            if why is not None or id(other) not in chosen:
                raise TargetError(
                    f"{name}: shares its weight with {other_name or 'the model'}, which would go on"
                    f" using it dense ({why or 'it is not among the targets'}). Target both, or add"
                    f" {name!r} to ignore=[...]."
                )
        yield Target(name, module, tuple(twins))


def _nothing_found(modules: dict[str, nn.Module]) -> str:
    skipped = [name for name, module in modules.items() if isinstance(module, PRUNABLE)]
    if any(type(module).__name__ == "Conv1D" for module in modules.values()):
        return (
            "the blocks of this model are made of transformers' Conv1D, which has no masked form."
            " Make them Linears first, which compute the same: gossamer.nn.conv1d_to_linear(model);"
            " gossamer.load does that. Whole heads and filters can be pruned as it is."
        )
    if skipped:
        return (
            "no layer is left to prune: heads and layers tied to an embedding are left out by"
            f" default, and ignore=[...] may have taken the rest. Layers: {', '.join(skipped)}."
            f" To prune one all the same: targets=[{skipped[0]!r}]."
        )
    kinds = sorted({type(module).__name__ for module in modules.values()})
    return f"the model has no Linear or Conv2d layer to prune; it holds {', '.join(kinds)}."
