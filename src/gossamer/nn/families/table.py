# SPDX-License-Identifier: Apache-2.0
"""The table of model families, and how a module finds its row."""

from functools import cache
from typing import Any, Final, Literal

from torch import nn

from gossamer.errors import InputError
from gossamer.nn.families import (
    bert,
    distilbert,
    gpt2,
    llama,
    mistral,
    opt,
    plain,
    qwen2,
    roberta,
    zoo_encoder,
    zoo_gpt,
)
from gossamer.nn.families.family import BlockParts, ClassNames, Family, PositionFacts

FAMILIES: Final[tuple[Family, ...]] = (
    plain.SEQUENTIAL,
    bert.FAMILY,
    roberta.FAMILY,
    distilbert.FAMILY,
    gpt2.FAMILY,
    opt.FAMILY,
    llama.FAMILY,
    qwen2.FAMILY,
    mistral.FAMILY,
    zoo_encoder.FAMILY,
    zoo_gpt.FAMILY,
    plain.MLP,
)

Question = Literal[
    "block", "encoder", "decoder", "tokens", "positions", "chains", "classes", "gguf", "growth"
]
# How the names of models end that give logits of the next token, of any family.
DECODER_HEADS = ("ForCausalLM", "LMHeadModel")
# How configurations of transformers name the number of positions.
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")


@cache
def answers(question: Question) -> dict[str, Any]:
    """What each family that has an answer says to a question of `Family`, by its name."""
    found = {family.name: getattr(family, question) for family in FAMILIES}
    return {name: answer for name, answer in found.items() if not isinstance(answer, str)}


_BY_BLOCK = {block.block: name for name, block in answers("block").items()}
_AFTER_PADDING = {
    family.classes.model_type
    for family in FAMILIES
    if isinstance(family.classes, ClassNames)
    and isinstance(family.positions, PositionFacts)
    and family.positions.after_padding
}


def block_of(module: nn.Module, question: Question = "block") -> BlockParts | None:
    """The parts of a block of a family that answers `question`; None for every other module."""
    kind = type(module)
    name = _BY_BLOCK.get(f"{kind.__module__}.{kind.__qualname__}", "")
    return answers("block")[name] if name in answers(question) else None


def family_of(model: nn.Module, question: Question) -> str | None:
    """The family of the blocks of `model`, or of its class, if it answers; None otherwise."""
    kinds = {f"{type(m).__module__}.{type(m).__qualname__}" for m in model.modules()}
    found = [name for block, name in _BY_BLOCK.items() if block in kinds]
    if not found:
        # A model without a single block has a class all the same.
        own = type(model).__name__
        found = [name for name, c in answers("classes").items() if own in c.names]
        found += [family.name for family in FAMILIES if family.name == f"zoo.{own}"]
    return next((name for name in found if name in answers(question)), None)


def is_decoder(model: nn.Module) -> bool:
    """Whether the class of `model` says that it gives logits of the next token."""
    return type(model).__name__.endswith(DECODER_HEADS)


def starts_after_padding(config: Any) -> bool:
    """Whether a configuration of transformers numbers positions from behind the padding token."""
    return config.model_type in _AFTER_PADDING


def num_positions(config: Any) -> int:
    """Tokens of the longest sequence that a model of this configuration takes."""
    found = [getattr(config, name, None) for name in _POSITIONS]
    known = [int(number) for number in found if number]
    if not known:
        raise InputError(
            "the configuration of this model does not say how many positions it has; expected one"
            f" of {', '.join(_POSITIONS)}."
        )
    reserved = int(config.pad_token_id) + 1 if starts_after_padding(config) else 0
    return min(known) - reserved
