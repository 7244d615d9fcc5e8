# SPDX-License-Identifier: Apache-2.0
"""What a growth is asked to be, and what that means for a model, before anything is made."""

import warnings
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gossamer.errors import InputError, ResourceError
from gossamer.io.safe_files import available_bytes
from gossamer.nn.surgery.carried import carried_by_calls
from gossamer.training.growth.larger import LayerSource, Where, layer_sources, settings_of
from gossamer.training.growth.roles import Anatomy, anatomy_of, layer_of, role_of
from gossamer.training.growth.tensors import Factors

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
        allow_approximate: deepen models whose norms sit on the residual path, too, by copies.
    """

    width: int = 1
    depth: int = 1
    ffn: int | None = None
    heads: int | None = None
    kv_heads: int = 1
    layers: int | None = None
    vocabulary: int | None = None
    mode: DepthMode = "out0"
    where: Where | None = None
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
        wrong = [name for name in asked if name not in known]
        if wrong:
            raise InputError(
                f"grow: {wrong[0]!r} is not a setting; expected one of {', '.join(known)}."
            )
        return cls(**asked)

    def __post_init__(self) -> None:
        for name in ("width", "depth", "ffn", "heads", "kv_heads"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= MAX_FACTOR):
                raise InputError(
                    f"grow: {name} must be a whole number from 1 to {MAX_FACTOR}, got {value!r}."
                )
        hints = get_type_hints(Growth)
        for name in ("mode", "where", "blocks", "symmetry", "state"):
            choices = get_args(hints[name])
            if name == "where":
                choices = (*get_args(Where), None)
            if getattr(self, name) not in choices:
                words = ", ".join(str(choice) for choice in choices)
                raise InputError(
                    f"grow: {name} must be one of {words}; got {getattr(self, name)!r}."
                )
        for name, most in (("sigma", 10), ("opened", 1)):
            if not 0 <= getattr(self, name) <= most:
                raise InputError(f"grow: {name} must be in [0, {most}], got {getattr(self, name)}.")


@dataclass(frozen=True)
class GrowthPlan:
    """A growth in the numbers of one model.

    Attributes:
        growth: what was asked for.
        anatomy: of the old model.
        factors: of the spaces.
        sources: of the blocks of the larger model.
    """

    growth: Growth
    anatomy: Anatomy
    factors: Factors
    sources: tuple[LayerSource, ...]


def plan_growth(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, growth: Growth
) -> GrowthPlan:
    """What would become of `model`; everything that can be refused is refused here."""
    _refuse_wrapped(model)
    if optimizer is not None and not issubclass(type(optimizer), torch.optim.Optimizer):
        raise InputError(f"grow: expected a torch optimizer, got {type(optimizer).__name__}.")
    anatomy = anatomy_of(model)
    heads = growth.width if growth.heads is None else growth.heads
    ffn = growth.width if growth.ffn is None else growth.ffn
    _check_factors(model, anatomy, growth, heads, ffn)
    sources = layer_sources(
        anatomy.num_layers,
        anatomy.num_layers * growth.depth if growth.layers is None else growth.layers,
        growth.where or ("top" if growth.mode == "stack" else "after"),
    )
    factors = Factors(
        stream=growth.width,
        query=heads,
        key=heads,
        ffn=ffn,
        spread=growth.kv_heads,
        vocabulary=_new_tokens(model, anatomy, growth),
        tied=_is_tied(model, anatomy),
        head_dim=_head_dim(model, anatomy),
    )
    sizes = (growth.width, ffn, heads, growth.kv_heads)
    if max(sizes) == 1 and not factors.vocabulary and len(sources) == anatomy.num_layers:
        raise InputError(
            "grow: nothing grows. Give width, depth, ffn, heads, layers or vocabulary."
        )
    plan = GrowthPlan(growth, anatomy, factors, sources)
    _check_depth(model, plan)
    _check_memory(model, optimizer, plan)
    _check_symmetry(model, plan)
    return plan


def _refuse_wrapped(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            raise InputError(
                "grow: unwrap DistributedDataParallel first, and wrap the larger model."
            )
        why = carried_by_calls(module)
        if why is not None:
            raise InputError(
                f"grow: {name or 'the model'} cannot be rebuilt larger: {why}. Take that off first."
            )


def _check_factors(
    model: nn.Module, anatomy: Anatomy, growth: Growth, heads: int, ffn: int
) -> None:
    facts = anatomy.facts
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
    if not facts.kv_heads:
        raise InputError(f"grow: a {anatomy.family} has one key and value head per query head.")
    settings = settings_of(model)
    queries, keys = settings[facts.heads], settings[facts.kv_heads]
    if queries % (keys * growth.kv_heads):
        raise InputError(
            f"grow: {queries} query heads cannot share {keys} x {growth.kv_heads} key and value"
            " heads evenly."
        )


def _new_tokens(model: nn.Module, anatomy: Anatomy, growth: Growth) -> int:
    tokens = int(settings_of(model)[anatomy.facts.vocabulary])
    if growth.vocabulary is None:
        return 0
    if growth.vocabulary < tokens:
        raise InputError(
            f"grow: vocabulary {growth.vocabulary} is smaller than the {tokens} tokens there are."
        )
    return growth.vocabulary - tokens


def _is_tied(model: nn.Module, anatomy: Anatomy) -> bool:
    """Whether the head of the vocabulary shares the table of tokens."""
    found: dict[str, set[int]] = {"table": set(), "head": set()}
    for name, module in model.named_modules():
        role = "" if layer_of(name, anatomy) else role_of(name, anatomy.facts)
        if role in found:
            found[role].add(id(module._parameters.get("weight")))
    return bool(found["table"] & found["head"])


def _head_dim(model: nn.Module, anatomy: Anatomy) -> int:
    if not anatomy.num_layers:
        return 1
    path, _, attribute = anatomy.block.head_dim.rpartition(".")
    block = model.get_submodule(f"{anatomy.layers}.0")
    return int(getattr(block.get_submodule(path), attribute))


def _check_depth(model: nn.Module, plan: GrowthPlan) -> None:
    growth, anatomy = plan.growth, plan.anatomy
    preserves = growth.mode in ("out0", "ln0") and any(s.is_new for s in plan.sources)
    for name in anatomy.facts.by_number:
        if preserves and settings_of(model).get(name):
            raise InputError(
                f"grow: with {name} a block computes by its number, so blocks cannot move up"
                " without changing the function. Grow the width, or use mode='stack'."
            )
    if preserves and not anatomy.norm_first and not growth.allow_approximate:
        raise InputError(
            f"grow: the norms of this {anatomy.family} sit on the residual path, so no new block"
            " leaves the function unchanged. Grow its width, or take allow_approximate=True."
        )
    if growth.mode == "ln0" and len(anatomy.block.expansions) > 1:
        raise InputError(
            "grow: with mode='ln0' a gated feed-forward part would get no gradient ever"
            " (both factors are 0). Use mode='out0'."
        )


def _check_symmetry(model: nn.Module, plan: GrowthPlan) -> None:
    growth, factors = plan.growth, plan.factors
    drops = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
    differ = growth.sigma > 0 if growth.symmetry == "noise" else drops
    if growth.symmetry == "none":
        differ = False
    if max(factors.stream, factors.query, factors.ffn) > 1 and not differ:
        warnings.warn(
            f"grow: symmetry={growth.symmetry!r} and nothing in the model makes the copies differ:"
            " they get the same gradients, and the larger model stays the small one in disguise.",
            stacklevel=4,
        )


def _check_memory(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, plan: GrowthPlan
) -> None:
    """The larger model, its gradients and its state, before anything is made."""
    held = 2 * sum(p.numel() * p.element_size() for p in model.parameters())
    if optimizer is not None:
        tensors = [t for entry in optimizer.state.values() for t in entry.values()]
        held += sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
    factors = plan.factors
    wider = factors.stream * max(factors.stream, factors.query, factors.ffn)
    deeper = max(len(plan.sources) / max(plan.anatomy.num_layers, 1), 1.0)
    needed, free = int(held * wider * deeper), available_bytes()
    if needed > free:
        raise ResourceError(
            f"grow: the larger model with gradients and state needs up to {needed / 2**30:.1f} GiB,"
            f" and {free / 2**30:.1f} GiB are free. Grow less, or on a larger machine."
        )
