# SPDX-License-Identifier: Apache-2.0
"""What every parameter of a model is for, read from the table of families."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from gossamer.errors import InputError
from gossamer.nn.families import BlockParts, GrowthFacts, answers, block_of, family_of, why_not
from gossamer.nn.surgery.matrix_layers import stores_transposed
from gossamer.training.growth.tensors import Axes, Layout, Space

# Role -> the spaces that it makes and reads.
_SPACES: dict[str, tuple[Space, Space]] = {
    "query": ("query", "stream"),
    "key": ("key", "stream"),
    "output": ("stream", "query"),
    "expansion": ("ffn", "stream"),
    "down": ("stream", "ffn"),
    "table": ("stream", "vocabulary"),
    "embedding": ("stream", "fixed"),
    "patches": ("stream", "fixed"),
    "head norm": ("fixed", "fixed"),
    "query norm": ("query", "fixed"),
    "key norm": ("key", "fixed"),
    "distances": ("query", "fixed"),
    "joint": ("query", "stream"),
    "pair classifier": ("fixed", "stream"),
    "norm": ("stream", "fixed"),
    "last norm": ("stream", "fixed"),
    "inner": ("stream", "stream"),
    "head": ("vocabulary", "stream"),
    "logits": ("vocabulary", "fixed"),
    "classifier": ("fixed", "stream"),
}
_VECTORS = ("norm", "last norm", "head norm", "query norm", "key norm", "logits")
# Rows are looked up, or added to those of a sequence: what is made lies along the last side.
_ROWS = ("table", "embedding", "distances")


@dataclass(frozen=True)
class Anatomy:
    """Where a model of a known family keeps its parts.

    Attributes:
        family: its name.
        facts: what the family says about growth.
        block: where its blocks keep their parts.
        layers: path of the list of blocks.
        num_layers: blocks.
        norm_first: False if norms sit on the residual path.
        settings: by name: arguments of a zoo model, or fields of a configuration.
    """

    family: str
    facts: GrowthFacts
    block: BlockParts
    layers: str
    num_layers: int
    norm_first: bool
    settings: dict[str, Any]


def anatomy_of(model: nn.Module) -> Anatomy:
    """The parts of a model; InputError if its family does not say how it grows."""
    family = family_of(model, "growth")
    if family is None:
        known = ", ".join(answers("growth"))
        first = next((name for name, _ in model.named_parameters()), "no parameter at all")
        raise InputError(
            f"grow: the roles of the parameters of a {type(model).__name__} are not known"
            f" ({first!r}, for one).{why_not(model, 'growth')} Known families: {known}."
        )
    block: BlockParts = answers("block")[family]
    every = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    lists = [(n, m) for n, m in every if any(block_of(layer) for layer in m)]
    # A model may begin without a single block.
    lists = lists or [(n, m) for n, m in every if not len(m)]
    if len(lists) != 1:
        raise InputError(
            f"grow: expected one list of {family} blocks in the {type(model).__name__}, found"
            f" {len(lists)}."
        )
    path, layers = lists[0]
    norm_first = block.norm_first
    if isinstance(norm_first, str):
        norm_first = len(layers) == 0 or bool(getattr(layers[0], norm_first))
    facts, settings = answers("growth")[family], _settings_of(model)
    return Anatomy(family, facts, block, path, len(layers), norm_first, settings)


def _settings_of(model: nn.Module) -> dict[str, Any]:
    if hasattr(model, "zoo_args"):
        zoo_args: Any = model.zoo_args
        return dict(zoo_args())
    if getattr(model, "config", None) is None:
        raise InputError(
            f"grow: a {type(model).__name__} says neither by zoo_args() nor by a config how it is"
            " built. Unwrap it first if it is compiled or wrapped."
        )
    return dict(vars(model.config))


def axes_of(model: nn.Module, anatomy: Anatomy) -> dict[str, Axes]:
    """Name of each parameter slot of the dense model -> what its sides stand for.

    Tied parameters have several names. A sparse layer counts as the dense one it stands for.
    """
    found: dict[str, Axes] = {}
    tables: dict[nn.Parameter, Axes] = {}
    heads: dict[str, nn.Parameter] = {}
    unknown = []
    for name, module in model.named_modules():
        inside = layer_of(name, anatomy)
        role = _part_of(inside[1], anatomy) if inside else role_of(name, anatomy.facts)
        for key, param in module._parameters.items():
            if param is None and (key == "bias" or role == "joint"):
                continue
            # The values of a compact layer stand for the weight of the dense one.
            key = "weight" if key == "values" else key
            slot = f"{name}.{key}" if name else key
            if not role:
                unknown.append(slot)
                continue
            made, read = _SPACES[role]
            segments = _segments(role, anatomy, is_block=inside is not None)
            if key.endswith("bias") or role in _VECTORS:
                is_last = role == "last norm"
                found[slot] = Axes(made, "fixed", "vector", segments, is_last_norm=is_last)
            else:
                is_turned = role in _ROWS or stores_transposed(module)
                layout: Layout = "transposed" if is_turned else "matrix"
                parts = 2 if role == "pair classifier" else 1
                is_table = role == "table"
                found[slot] = Axes(made, read, layout, segments, parts, is_table)
                if param is not None and role == "table":
                    tables[param] = found[slot]
                elif param is not None and role == "head":
                    heads[slot] = param
    if unknown:
        raise InputError(
            f"grow: {unknown[0]!r} has no role in the family {anatomy.family}"
            f" ({len(unknown)} such parameter{'s' if len(unknown) > 1 else ''}). Take it out of the"
            f" model, or add it to nn/families."
        )
    # A head that shares the table is the table, in whatever order the model holds them.
    return found | {slot: tables[param] for slot, param in heads.items() if param in tables}


def role_of(name: str, facts: GrowthFacts) -> str:
    """What a module outside of blocks is, by the longest end of its name; "" if nobody knows."""
    ends = [end for end in facts.roles if f".{name}".endswith(f".{end}")]
    return facts.roles[max(ends, key=len)] if ends else ""


def layer_of(name: str, anatomy: Anatomy) -> tuple[int, str] | None:
    """Number of the block a name lies in, and the name inside it; None outside of blocks."""
    prefix = f"{anatomy.layers}."
    if not name.startswith(prefix):
        return None
    number, _, rest = name.removeprefix(prefix).partition(".")
    return int(number), rest


def _segments(role: str, anatomy: Anatomy, *, is_block: bool) -> tuple[int, ...]:
    """Shares of the projections that are stacked in a layer of this role."""
    facts, parts = anatomy.facts, anatomy.block
    if role == "joint":
        return (1, 1, 1)
    if role == "expansion" and is_block:
        return (1,) * parts.expansion_segments
    if role != "query" or facts.rows == "in turn":
        return (1,)
    if facts.rows == "unequal":
        queries, keys = (int(anatomy.settings[name]) for name in (facts.heads, facts.kv_heads))
        return (queries, keys, keys)
    return (1,) * parts.segments


def _part_of(name: str, anatomy: Anatomy) -> str:
    """What a module inside of a block is; "" if nobody knows."""
    parts = anatomy.block
    if name in anatomy.facts.inside:
        return anatomy.facts.inside[name]
    if name in parts.projections:
        return "query" if name == parts.projections[0] else "key"
    if name in parts.expansions:
        return "expansion"
    if name in parts.norms:
        return "norm"
    return {parts.output: "output", parts.down: "down"}.get(name, "")
