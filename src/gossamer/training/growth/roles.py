# SPDX-License-Identifier: Apache-2.0
"""What every parameter of a model is for, read from the table of families."""

from dataclasses import dataclass

from torch import nn

from gossamer.errors import InputError
from gossamer.nn.families import BlockParts, GrowthFacts, answers, block_of, family_of
from gossamer.nn.surgery.slimming.matrix_layer import stores_transposed
from gossamer.training.growth.tensors import Axes, Layout, Space


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
    """

    family: str
    facts: GrowthFacts
    block: BlockParts
    layers: str
    num_layers: int
    norm_first: bool


def anatomy_of(model: nn.Module) -> Anatomy:
    """The parts of a model; InputError if its family does not say how it grows."""
    family = family_of(model, "growth")
    if family is None:
        known = ", ".join(answers("growth"))
        raise InputError(
            f"grow: the roles of the parameters of a {type(model).__name__} are not known"
            f" ({_first_name(model)!r}, for one). Known families: {known}."
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
    first = block.norm_first
    if isinstance(first, str):
        first = len(layers) == 0 or bool(getattr(layers[0], first))
    return Anatomy(family, answers("growth")[family], block, path, len(layers), first)


def axes_of(model: nn.Module, anatomy: Anatomy) -> dict[str, Axes]:
    """Name of each parameter slot of the dense model -> what its sides stand for.

    Tied parameters have several names. A sparse layer counts as the dense one it stands for.
    """
    found: dict[str, Axes] = {}
    unknown = []
    for name, module in model.named_modules():
        for key in _slots(module):
            slot = f"{name}.{key}" if name else key
            axes = _axes(name, module, key, anatomy)
            if axes is None:
                unknown.append(slot)
            else:
                found[slot] = axes
    if unknown:
        raise InputError(
            f"grow: {unknown[0]!r} has no role in the family {anatomy.family}"
            f" ({len(unknown)} such parameter{'s' if len(unknown) > 1 else ''}). Take it out of the"
            f" model, or add it to nn/families."
        )
    return found


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


def _slots(module: nn.Module) -> list[str]:
    """Names of the Parameters of a module itself; of a compact layer, those of the dense one."""
    names = ["weight" if key == "values" else key for key in module._parameters]
    return [key for key in names if key != "bias" or module._parameters["bias"] is not None]


def _axes(name: str, module: nn.Module, key: str, anatomy: Anatomy) -> Axes | None:
    inside = layer_of(name, anatomy)
    spaces = (
        _in_block(inside[1], anatomy.block) if inside is not None else _outside(name, anatomy.facts)
    )
    if spaces is None:
        return None
    made, read, segments, role = spaces
    is_last, is_head = role == "last norm", role == "head"
    if key == "bias" or role in ("norm", "last norm", "logits"):
        return Axes(made, layout="vector", segments=segments, is_last_norm=is_last)
    # Rows of a table are looked up: what is made lies along the second side.
    is_turned = role in ("table", "embedding") or stores_transposed(module)
    layout: Layout = "transposed" if is_turned else "matrix"
    return Axes(made, read, layout, segments, is_head=is_head)


# Made and read, stacked segments, role.
_Spaces = tuple[Space, Space, int, str]
_SPACES: dict[str, tuple[Space, Space]] = {
    "table": ("stream", "vocabulary"),
    "embedding": ("stream", "fixed"),
    "norm": ("stream", "fixed"),
    "last norm": ("stream", "fixed"),
    "inner": ("stream", "stream"),
    "head": ("vocabulary", "stream"),
    "logits": ("vocabulary", "fixed"),
    "classifier": ("fixed", "stream"),
}


def _in_block(name: str, parts: BlockParts) -> _Spaces | None:
    if name in parts.projections:
        is_query = name == parts.projections[0] and parts.segments == 1
        made: Space = "query" if is_query or parts.segments > 1 else "key"
        return made, "stream", parts.segments, "projection"
    if name == parts.output:
        return "stream", "query", 1, "projection"
    if name in parts.expansions:
        return "ffn", "stream", 1, "projection"
    if name == parts.down:
        return "stream", "ffn", 1, "projection"
    return ("stream", "fixed", 1, "norm") if name in parts.norms else None


def _outside(name: str, facts: GrowthFacts) -> _Spaces | None:
    role = role_of(name, facts)
    return None if not role else (*_SPACES[role], 1, role)


def _first_name(model: nn.Module) -> str:
    return next((name for name, _ in model.named_parameters()), "no parameter at all")
