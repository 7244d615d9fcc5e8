# SPDX-License-Identifier: Apache-2.0
"""Patterns of a model as data: read for files, given back, refused where they would be lost."""

from dataclasses import dataclass

from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.attention.marks import FULL, calls_interface, mark, marked_with, takes_mark
from gossamer.nn.attention.of_transformers import connect
from gossamer.nn.attention.sparse import SparseAttention
from gossamer.nn.surgery import disable_fast_paths, replace_module
from gossamer.patterns.attention import parse_attention


@dataclass(frozen=True)
class AttentionState:
    """What one attention layer attends to.

    Attributes:
        pattern: its text.
        causal: of a `SparseAttention`, like all that follow.
        global_tokens: that have projections of their own.
        alibi: scores fall with distance.
        softcap: of scores.
    """

    pattern: str
    causal: bool = False
    global_tokens: int = 0
    alibi: bool = False
    softcap: float | None = None


def attention_states(model: nn.Module) -> dict[str, AttentionState]:
    """The layers of `model` that attend to a pattern, by name."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, SparseAttention):
            found[name] = AttentionState(
                module.pattern, module.causal, module.global_tokens, module.alibi, module.softcap
            )
        elif takes_mark(module) and marked_with(module) != FULL:
            found[name] = AttentionState(marked_with(module))
    return found


def restore_attention(model: nn.Module, states: dict[str, AttentionState]) -> None:
    """Let the layers of a dense model attend to what `states` says, in place.

    A layer that has a pattern already must have the same one.

    Raises:
        TargetError: there is no such layer, or it attends to something else. Layers before it are
            changed then.
    """
    modules = dict(model.named_modules())
    present = attention_states(model)
    for name, state in states.items():
        module = modules.get(name)
        if name in present:
            if present[name] != state:
                raise TargetError(
                    f"{name}: attends to '{present[name].pattern}' with its settings, and"
                    f" '{state.pattern}' is asked for. Give a model with that pattern, or without"
                    " any."
                )
        elif type(module) is nn.MultiheadAttention:
            settings = {key: value for key, value in vars(state).items() if key != "pattern"}
            new = SparseAttention.from_dense(module, state.pattern, **settings)
            replace_module(model, module, new)
        elif module is not None and takes_mark(module):
            mark(module, str(parse_attention(state.pattern)))
        else:
            kind = "nothing" if module is None else f"a {type(module).__name__}"
            raise TargetError(
                f"{name}: '{state.pattern}' is asked for, but there is {kind}, no attention layer."
            )
    if any(calls_interface(modules[name]) for name in states):
        connect(model)
    disable_fast_paths(model)


def refuse_patterns(model: nn.Module, why: str, *, by_head: bool = False) -> None:
    """TargetError if a layer of `model` attends to a pattern that would be lost.

    Args:
        model: the model, or a part of it.
        why: what would become of it, such as "the native encoder computes all pairs".
        by_head: refuse only patterns that are not the same for all heads.
    """
    for name, state in attention_states(model).items():
        if not by_head or parse_attention(state.pattern).differs_by_head:
            where = name or type(model).__name__
            raise TargetError(f"{where}: attends to '{state.pattern}', and {why}.")
