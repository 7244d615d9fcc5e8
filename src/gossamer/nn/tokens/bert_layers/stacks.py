# SPDX-License-Identifier: Apache-2.0
"""Stacks of layers inside a model, and which of their modules dropping tokens leaves uncalled."""

from typing import Any, Literal

from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.families import answers, block_of
from gossamer.nn.surgery.carried import carried_by_calls

_UNCALLED = {name for facts in answers("tokens").values() for name in facts.uncalled}


def check_uncalled(encoder: nn.Module) -> None:
    """Refuse hooks on modules that are not called any more once tokens can be dropped."""
    for name, module in encoder.named_modules():
        last = name.rpartition(".")[2]
        uncalled = not name or last in _UNCALLED or last.isdigit()
        reason = carried_by_calls(module) if uncalled else None
        if reason is not None:
            raise TargetError(
                f"{name or 'the encoder'}: {reason}, and the module would not be called any more."
                " Remove it first, or put it on a module inside."
            )


def find_encoder(model: nn.Module) -> nn.Module:
    """The one module whose `layer` list holds BERT layers."""
    found = find_stacks(model, "tokens")
    if len(found) != 1:
        raise TargetError(
            f"token pruning: expected one encoder of the families {', '.join(answers('tokens'))} in"
            f" {type(model).__name__}, found {len(found)}"
            + (f": {', '.join(name or 'the model' for name, _ in found)}." if found else ".")
        )
    name, encoder = found[0]
    layers: Any = encoder.layer
    for number, layer in enumerate(layers):
        where = f"{name}.layer.{number}"
        if getattr(layer, "is_decoder", False):
            raise TargetError(f"{where}: is a decoder layer; token pruning needs an encoder.")
        if not hasattr(layer.attention.self, "query"):
            raise TargetError(f"{where}: has no heads left, so tokens have no importance in it.")
    return encoder


def find_stacks(
    model: nn.Module, question: Literal["encoder", "tokens"]
) -> list[tuple[str, nn.Module]]:
    """Modules whose list `layer` holds blocks, all of families that answer `question`."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(layers := getattr(module, "layer", None), nn.ModuleList)
        and len(layers)
        and all(block_of(layer, question) for layer in layers)
    ]
