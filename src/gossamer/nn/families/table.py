# SPDX-License-Identifier: Apache-2.0
"""The table of model families, and how a module finds its row."""

from functools import cache
from typing import Any, Final, Literal

from torch import nn

from gossamer.nn.families import (
    gemma,
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    olmoe,
    opt,
    phi3,
    plain,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    smollm3,
    zoo_encoder,
    zoo_gpt,
)
from gossamer.nn.families.encoders import ENCODERS
from gossamer.nn.families.family import BlockParts, Family

FAMILIES: Final[tuple[Family, ...]] = (
    plain.SEQUENTIAL,
    *ENCODERS,
    gpt2.FAMILY,
    opt.FAMILY,
    llama.FAMILY,
    qwen2.FAMILY,
    mistral.FAMILY,
    qwen3.FAMILY,
    phi3.FAMILY,
    gemma.FAMILY,
    gemma2.FAMILY,
    gemma3.FAMILY,
    olmo2.FAMILY,
    smollm3.FAMILY,
    granite.FAMILY,
    mixtral.FAMILY,
    qwen2_moe.FAMILY,
    qwen3_moe.FAMILY,
    olmoe.FAMILY,
    gpt_neox.FAMILY,
    zoo_encoder.FAMILY,
    zoo_gpt.FAMILY,
    plain.MLP,
)

Question = Literal[
    "block",
    "encoder",
    "decoder",
    "tokens",
    "positions",
    "chains",
    "classes",
    "gguf",
    "growth",
    "mixtures",
]


@cache
def answers(question: Question) -> dict[str, Any]:
    """What each family that has an answer says to a question of `Family`, by its name."""
    found = {family.name: getattr(family, question) for family in FAMILIES}
    return {name: answer for name, answer in found.items() if not isinstance(answer, str)}


# Some families answer for their blocks to the native decoder alone.
_BY_BLOCK = {facts.block.block: name for name, facts in answers("decoder").items()}
_BY_BLOCK |= {block.block: name for name, block in answers("block").items()}


def block_of(module: nn.Module, question: Question = "block") -> BlockParts | None:
    """The parts of a block of a family that answers `question`; None for every other module."""
    kind = type(module)
    name = _BY_BLOCK.get(f"{kind.__module__}.{kind.__qualname__}", "")
    parts: BlockParts | None = answers("block").get(name) if name in answers(question) else None
    if parts is not None and not _has(module, parts.down):
        return None  # a variant whose feed-forward part is another one
    return parts


def _has(module: nn.Module, path: str) -> bool:
    for name in path.split("."):
        if (found := module._modules.get(name)) is None:
            return False
        module = found
    return True


def family_of(model: nn.Module, question: Question) -> str | None:
    """The family of the blocks of `model`, or of its class, if it answers; None otherwise."""
    return next((name for name in _families_of(model) if name in answers(question)), None)


def why_not(model: nn.Module, question: Question) -> str:
    """What the family of `model` says instead of an answer: a sentence; empty if none knows it."""
    reasons = (getattr(f, question) for f in FAMILIES if f.name in _families_of(model))
    reason = next((reason for reason in reasons if isinstance(reason, str)), "")
    return f" Its family says why: {reason}." if reason else ""


def _families_of(model: nn.Module) -> list[str]:
    kinds = {f"{type(m).__module__}.{type(m).__qualname__}" for m in model.modules()}
    found = [name for block, name in _BY_BLOCK.items() if block in kinds]
    if not found:
        # A model without a single block has a class all the same.
        own = type(model).__name__
        found = [name for name, c in answers("classes").items() if own in c.names]
        found += [family.name for family in FAMILIES if family.name == f"zoo.{own}"]
    return found
