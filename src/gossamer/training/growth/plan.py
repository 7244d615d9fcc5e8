# SPDX-License-Identifier: Apache-2.0
"""What a growth is asked to be, and what that means for a model, before anything is made."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gossamer.errors import InputError, ResourceError, TargetError
from gossamer.io.safe_files.checks import available_bytes
from gossamer.nn.attention import refuse_patterns
from gossamer.nn.families import BlockParts
from gossamer.nn.layer_kinds import MOVING
from gossamer.nn.surgery.carried import carried_by_calls
from gossamer.training.growth.roles import Anatomy, anatomy_of, axes_of, layer_of, role_of
from gossamer.training.growth.tensors import Axes, Factors

Where = Literal["after", "top", "bottom", None]
DepthMode = Literal["out0", "ln0", "stack", "random"]
Blocks = Literal["diagonal", "uniform"]
Symmetry = Literal["noise", "dropout", "none"]
StateRule = Literal["grow", "old", "reset"]
MAX_FACTOR = 64


@dataclass(frozen=True)
class Growth:
    """How a model is to grow.

    Attributes:
        width: copies of everything: stream, heads and feed-forward part.
        depth: how many times as many blocks.
        ffn, heads: copies of one of them; None: as `width` says. A head keeps its size, so `heads`
            alone needs a family whose head size is a setting.
        kv_heads: how often each key and value head is repeated.
        layers: number of blocks, instead of `depth`; a model without any may grow some.
        experts: copies of every expert of a mixture; a growth of its own.
        vocabulary: number of tokens; new ones begin as the mean of the old.
        mode: of new blocks. "out0": a copy that adds nothing yet; "ln0": norms that give nothing
            yet (not for gated feed-forward parts); "stack": plain copies and "random": fresh ones,
            which change the function.
        where: new blocks stand "after" their source, on "top" or at the "bottom"; None: after it,
            and on top for "stack".
        blocks: "diagonal" keeps each copy by itself at first; "uniform" lets all copies read all
            others (HyperCloning).
        symmetry: "noise" makes copies differ without changing the function; "dropout" trusts the
            model's own; "none" leaves them alike, and alike they will stay.
        sigma: of the noise, in standard deviations of each weight.
        opened: share of the weights between copies that may become nonzero; the others are zeros of
            a mask, in tiles of 16 x 16.
        state: "grow"; "old": new blocks begin without a state; "reset": all begin without.
        mup: hidden matrices learn more slowly by the factor of what they read, in groups of their
            own.
        seed: of everything drawn.
        allow_approximate: deepen models whose norms sit on the residual path, too; the function
            changes then.
    """

    width: int = 1
    depth: int = 1
    ffn: int | None = None
    heads: int | None = None
    kv_heads: int = 1
    experts: int = 1
    layers: int | None = None
    vocabulary: int | None = None
    mode: DepthMode = "out0"
    where: Where = None
    blocks: Blocks = "diagonal"
    symmetry: Symmetry = "noise"
    sigma: float = 0.1
    opened: float = 1.0
    state: StateRule = "grow"
    mup: bool = False
    seed: int = 0
    allow_approximate: bool = False

    @classmethod
    def of(cls, **asked: Any) -> "Growth":
        """A growth of these fields; InputError for one that does not exist."""
        known = [field.name for field in fields(cls)]
        for name in asked:
            if name not in known:
                raise InputError(
                    f"grow: {name!r} is not a setting; expected one of {', '.join(known)}."
                )
        return cls(**asked)

    def __post_init__(self) -> None:
        for name in ("width", "depth", "ffn", "heads", "kv_heads", "experts"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= MAX_FACTOR):
                raise InputError(
                    f"grow: {name} must be a whole number from 1 to {MAX_FACTOR}, got {value!r}."
                )
        hints = get_type_hints(Growth)
        for name in ("mode", "where", "blocks", "symmetry", "state"):
            value, choices = getattr(self, name), get_args(hints[name])
            if value not in choices:
                words = ", ".join(map(str, choices))
                raise InputError(f"grow: {name} must be one of {words}; got {value!r}.")
        for name, most in (("sigma", 10), ("opened", 1)):
            if not 0 <= getattr(self, name) <= most:
                raise InputError(f"grow: {name} must be in [0, {most}], got {getattr(self, name)}.")


@dataclass(frozen=True)
class LayerSource:
    """Where a block of the larger model comes from.

    Attributes:
        layer: number of the old block; None if there is none to copy.
        is_new: whether the old block itself has another place.
    """

    layer: int | None
    is_new: bool


@dataclass(frozen=True)
class SlotPlan:
    """A growth in the numbers of one model: what becomes of its parameters.

    Attributes:
        growth: what was asked for.
        factors: of the spaces.
        axes: of the parameter slots of the old model, by name.
    """

    growth: Growth
    factors: Factors
    axes: dict[str, Axes]

    def source_of(self, name: str) -> tuple[str | None, bool]:
        """The old slot behind a new one, None if there is none, and whether the block is new."""
        return name, False


@dataclass(frozen=True)
class GrowthPlan(SlotPlan):
    """A growth of a model of a known family, which may get more blocks.

    Attributes:
        anatomy: of the old model.
        sources: of the blocks of the larger model.
    """

    anatomy: Anatomy
    sources: tuple[LayerSource, ...]

    def source_of(self, name: str) -> tuple[str | None, bool]:
        """The old slot behind a new one, None if there is none, and whether the block is new."""
        inside = layer_of(name, self.anatomy)
        if inside is None:
            return name, False
        source = self.sources[inside[0]]
        if source.layer is None:
            return None, True
        return f"{self.anatomy.layers}.{source.layer}.{inside[1]}", source.is_new


def plan_growth(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    growth: Growth,
    copies: int = 1,
) -> GrowthPlan:
    """What would become of `model`; everything that can be refused is refused here.

    Args:
        model: as it is.
        optimizers: hold its parameters, each once.
        growth: what is asked for.
        copies: of its weights that grow: itself and its averages.
    """
    refuse_wrapped(model)
    anatomy = anatomy_of(model)
    heads = growth.width if growth.heads is None else growth.heads
    ffn = growth.width if growth.ffn is None else growth.ffn
    _check_factors(anatomy, growth, heads, ffn)
    sources = _layer_sources(anatomy.num_layers, growth)
    tokens = _tokens(anatomy, growth)
    vocabulary = tokens if growth.vocabulary is None else growth.vocabulary
    if vocabulary < tokens:
        raise InputError(
            f"grow: vocabulary {vocabulary} is smaller than the {tokens} tokens there are."
        )
    factors = Factors(
        stream=growth.width,
        heads=heads,
        ffn=ffn,
        spread=growth.kv_heads,
        vocabulary=vocabulary - tokens,
        tied=_is_tied(model, anatomy),
        head_dim=_head_dim(model, anatomy),
        table=_table_scale(model, anatomy, growth),
        around_one=anatomy.facts.around_one,
    )
    is_same = vocabulary == tokens and len(sources) == anatomy.num_layers
    if is_same and factors.largest == growth.kv_heads == 1:
        raise InputError(
            "grow: nothing grows. Give width, depth, ffn, heads, layers or vocabulary."
        )
    plan = GrowthPlan(growth, factors, axes_of(model, anatomy), anatomy, sources)
    _check_depth(plan)
    wider = factors.stream * factors.largest
    check_memory(
        model, optimizers, wider * max(len(sources) / max(anatomy.num_layers, 1), 1.0), copies
    )
    _check_symmetry(model, plan)
    return plan


def _layer_sources(before: int, growth: Growth) -> tuple[LayerSource, ...]:
    """The blocks of the larger model in order; InputError if it would have fewer."""
    after = before * growth.depth if growth.layers is None else growth.layers
    where = growth.where or ("top" if growth.mode == "stack" else "after")
    if after < before:
        raise InputError(f"grow: {after} layers are fewer than the {before} that there are.")
    if not before:
        return (LayerSource(None, True),) * after
    extra = after - before
    if where != "after":
        old = tuple(LayerSource(layer, False) for layer in range(before))
        new = tuple(LayerSource(layer % before, True) for layer in range(extra))
        return old + new if where == "top" else new + old
    found: list[LayerSource] = []
    for layer in range(before):
        found.append(LayerSource(layer, False))
        # As even as can be: the first blocks get one more.
        number = extra // before + (layer < extra % before)
        found += [LayerSource(layer, True)] * number
    return tuple(found)


def refuse_wrapped(model: nn.Module) -> None:
    """Raise InputError for what is around or in a model and would be lost."""
    try:
        refuse_patterns(model, "the larger model would attend to all pairs")
    except TargetError as error:
        raise InputError(f"grow: {error} Grow first, and give the pattern afterwards.") from error
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            raise InputError(
                "grow: unwrap DistributedDataParallel first, and wrap the larger model."
            )
        if module in MOVING:
            raise InputError(
                f"grow: a schedule moves the mask of {name}. Grow first and attach the schedule to"
                " the larger model, or call close() of its controller once masks are final."
            )
        why = carried_by_calls(module)
        if why is not None:
            raise InputError(
                f"grow: {name or 'the model'} cannot be rebuilt larger: {why}. Take that off first."
            )


def _tokens(anatomy: Anatomy, growth: Growth) -> int:
    """Of the vocabulary; 0 where there is none."""
    if anatomy.facts.vocabulary:
        return int(anatomy.settings[anatomy.facts.vocabulary])
    if growth.vocabulary:
        raise InputError(f"grow: a {anatomy.family} reads images and has no vocabulary.")
    return 0


def _table_scale(model: nn.Module, anatomy: Anatomy, growth: Growth) -> float:
    """What embeddings become where the family multiplies them by the root of the width."""
    name = anatomy.facts.embedding_scale
    if not name or growth.width == 1:
        return 1.0
    table = next(
        module
        for path, module in model.named_modules()
        if not layer_of(path, anatomy) and role_of(path, anatomy.facts) == "table"
    )
    width = int(anatomy.settings[anatomy.facts.width[0]])
    # In the precision in which both models multiply.
    dtype = next(table.parameters()).dtype
    before, after = getattr(table, name), torch.tensor((width * growth.width) ** 0.5)
    return float(before.to(dtype)) / float(after.to(dtype))


def _check_factors(anatomy: Anatomy, growth: Growth, heads: int, ffn: int) -> None:
    facts = anatomy.facts
    if ffn != growth.width and not facts.ffn:
        raise InputError(
            f"grow: the feed-forward part of a {anatomy.family} is a fixed multiple of its width,"
            f" so ffn={ffn} needs width={ffn}; got width={growth.width}."
        )
    if heads != growth.width and not facts.head_dim:
        raise InputError(
            f"grow: heads of a {anatomy.family} have width / heads rows, so {heads} times the heads"
            f" need {heads} times the width; got width={growth.width}."
        )
    for name, factor in (("ffn", ffn), ("heads", heads)):
        small, large = sorted((factor, growth.width))
        if large % small:
            raise InputError(
                f"grow: {name}={factor} and width={growth.width}: one must divide the other, so"
                " that copies read copies evenly."
            )
    if growth.kv_heads == 1:
        return
    if facts.rows == "unequal":
        raise InputError(
            f"grow: queries, keys and values of a {anatomy.family} are one matrix, in which key and"
            " value heads cannot be repeated; got kv_heads="
            f"{growth.kv_heads}."
        )
    if not facts.kv_heads:
        raise InputError(f"grow: a {anatomy.family} has one key and value head per query head.")
    queries, keys = anatomy.settings[facts.heads], anatomy.settings[facts.kv_heads]
    if queries % (keys * growth.kv_heads):
        raise InputError(
            f"grow: {queries} query heads cannot share {keys} x {growth.kv_heads} key and value"
            " heads evenly."
        )


def _is_tied(model: nn.Module, anatomy: Anatomy) -> bool:
    """Whether the head of the vocabulary shares the table of tokens."""

    def weights(role: str) -> set[int]:
        return {
            id(module._parameters.get("weight"))
            for name, module in model.named_modules()
            if not layer_of(name, anatomy) and role_of(name, anatomy.facts) == role
        }

    return bool(weights("table") & weights("head"))


def _head_dim(model: nn.Module, anatomy: Anatomy) -> int:
    if not anatomy.num_layers:
        return 1
    path, _, attribute = anatomy.block.head_dim.rpartition(".")
    block = model.get_submodule(f"{anatomy.layers}.0")
    return int(getattr(block.get_submodule(path), attribute))


def _is_gated(block: BlockParts) -> bool:
    return len(block.expansions) * block.expansion_segments > 1


def _check_depth(plan: GrowthPlan) -> None:
    growth, anatomy = plan.growth, plan.anatomy
    if not anatomy.facts.layers and len(plan.sources) != anatomy.num_layers:
        raise InputError(
            f"grow: the layers of this {anatomy.family} are shared, so there are no more of them to"
            " add. Grow its width."
        )
    preserves = growth.mode in ("out0", "ln0") and any(s.is_new for s in plan.sources)
    for name in anatomy.facts.by_number:
        if preserves and anatomy.settings.get(name):
            raise InputError(
                f"grow: with {name} a block computes by its number, so blocks cannot move up"
                " without changing the function. Grow the width, or use mode='stack'."
            )
    if preserves and not anatomy.norm_first and not growth.allow_approximate:
        raise InputError(
            f"grow: the norms of this {anatomy.family} sit on the residual path, so no new block"
            " leaves the function unchanged. Grow its width, or take allow_approximate=True."
        )
    if growth.mode == "ln0" and _is_gated(anatomy.block):
        raise InputError(
            "grow: with mode='ln0' a gated feed-forward part would get no gradient ever"
            " (both factors are 0). Use mode='out0'."
        )


def _check_symmetry(model: nn.Module, plan: GrowthPlan) -> None:
    symmetry = plan.growth.symmetry
    drops = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
    differ = {"noise": plan.growth.sigma > 0, "dropout": drops, "none": False}[symmetry]
    if plan.factors.largest > 1 and not differ:
        warnings.warn(
            f"grow: symmetry={symmetry!r} and nothing in the model makes the copies differ:"
            " they get the same gradients, and the larger model stays the small one in disguise.",
            stacklevel=4,
        )


def check_memory(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    factor: float,
    copies: int,
) -> None:
    """The larger model, its averages, gradients and state, before anything is made."""
    held = (1 + copies) * sum(p.numel() * p.element_size() for p in model.parameters())
    for optimizer in optimizers:
        tensors = [t for entry in optimizer.state.values() for t in entry.values()]
        held += sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
    needed, free = int(held * factor), available_bytes()
    if needed > free:
        raise ResourceError(
            f"grow: the larger model with gradients and state needs up to {needed / 2**30:.1f} GiB,"
            f" and {free / 2**30:.1f} GiB are free. Grow less, or on a larger machine."
        )
