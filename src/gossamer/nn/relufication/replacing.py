# SPDX-License-Identifier: Apache-2.0
"""Activations and norms are replaced, and put back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.nn.families import answers, block_of
from gossamer.nn.relufication.activations import RectifiedNorm, ShiftedReLU
from gossamer.nn.relufication.blocks import feed_forward_blocks

# How configurations of transformers name the activation.
_CONFIG_NAMES = {classes.activation for classes in answers("classes").values()}


@dataclass(frozen=True)
class OldActivations:
    """What `relufy` replaced.

    Attributes:
        modules: activations by block name.
        config: what the model's configuration called them.
        norms: norms by name.
    """

    modules: dict[str, nn.Module]
    config: dict[str, Any]
    norms: dict[str, nn.Module] = field(default_factory=dict)


def relufy(
    model: nn.Module,
    shifts: Mapping[str, float] | float = 0.0,
    *,
    keeps: bool = False,
    norms: bool = False,
) -> OldActivations:
    """Replace the activation of every feed-forward block, in place.

    Args:
        model: its blocks are those of `find_feed_forward`.
        shifts: one shift for all blocks, or one per block name (`choose_shifts`); 0 is plain ReLU.
        keeps: what is above its shift stays as it is, and is not shifted (FATReLU).
        norms: put a ReLU behind both norms of every block, too: the second stage. What projections
            read has zeros then. Only in models whose norms come first.

    Returns:
        The old activations, for `restore_activations`. The model's configuration says "relu" from
        now on, so that a saved model is loaded with it.
    """
    blocks = feed_forward_blocks(model)
    wanted = shifts if isinstance(shifts, Mapping) else {block.name: shifts for block in blocks}
    if set(wanted) != {block.name for block in blocks}:
        raise InputError(
            f"relufy: expected a shift for each of {', '.join(block.name for block in blocks)},"
            f" got {', '.join(wanted) or 'none'}."
        )
    for name, shift in wanted.items():
        if not 0 <= float(shift) < float("inf"):
            raise InputError(f"relufy: the shift of {name} must be 0 or more, got {shift}.")
    config = getattr(model, "config", None)
    names = {name: getattr(config, name) for name in _CONFIG_NAMES if hasattr(config, name)}
    old = OldActivations(
        {block.name: block.activation for block in blocks}, names, _norms(model) if norms else {}
    )
    for block in blocks:
        shift = float(wanted[block.name])
        new = ShiftedReLU(shift, keeps) if shift else nn.ReLU()
        like = next(block.first.parameters(), None)
        if like is not None:
            new.to(like.device)
        block.put(new)
    for name, norm in old.norms.items():
        _put(model, name, RectifiedNorm(norm))
    for name in old.config:
        setattr(model.config, name, "relu")
    return old


def restore_activations(model: nn.Module, old: OldActivations) -> None:
    """Undo `relufy`: with untouched weights the model computes what it did before, to the bit."""
    blocks = {block.name: block for block in feed_forward_blocks(model)}
    unknown = [name for name in old.modules if name not in blocks]
    if unknown:
        raise InputError(f"restore_activations: the model has no block {unknown[0]}.")
    for name, activation in old.modules.items():
        setattr(blocks[name].parent, blocks[name].attribute, activation)
    for name, norm in old.norms.items():
        _put(model, name, norm)
    for name, value in old.config.items():
        setattr(model.config, name, value)


def _norms(model: nn.Module) -> dict[str, nn.Module]:
    """The norms in front of attention and feed-forward parts that have no ReLU yet."""
    found: dict[str, nn.Module] = {}
    for name, block in model.named_modules():
        parts = block_of(block)
        if parts is None:
            continue
        first = parts.norm_first
        if not (getattr(block, first) if isinstance(first, str) else first):
            raise TargetError(
                f"relufy: {name} normalises what is added, so a ReLU behind its norms would be in"
                " the stream of the model. The second stage is for models whose norms come first."
            )
        prefix = f"{name}." if name else ""
        found |= {prefix + norm: block.get_submodule(norm) for norm in parts.norms}
    if not found:
        raise TargetError(f"relufy: {type(model).__name__} has no block whose norms are known.")
    return {n: norm for n, norm in found.items() if not isinstance(norm, RectifiedNorm)}


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, attribute = name.rpartition(".")
    module.train(model.training)
    setattr(model.get_submodule(owner), attribute, module)
