# SPDX-License-Identifier: Apache-2.0
"""`gossamer.grow`: a larger model that computes the same, with its whole training state."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gossamer.errors import InputError, PatternError, ResourceError
from gossamer.io.safe_files import available_bytes
from gossamer.nn.layer_kinds import mask_in, sparse_layers, to_compact
from gossamer.nn.surgery.carried import carried_by_calls
from gossamer.nn.surgery.replace import replace_module
from gossamer.ops.training import expand, gather
from gossamer.patterns import Pattern, Unstructured, parse_pattern
from gossamer.training.growth.larger import (
    MAX_FACTOR,
    DepthMode,
    LayerSource,
    Where,
    built_larger,
    layer_sources,
)
from gossamer.training.growth.roles import Anatomy, anatomy_of, axes_of, layer_of
from gossamer.training.growth.state import check_growable, grown_state, is_split, master_of
from gossamer.training.growth.tensors import (
    Axes,
    Breaker,
    Factors,
    Quantity,
    grown_mask,
    grown_tensor,
)
from gossamer.training.optim import SmallStateOptimizer

Symmetry = Literal["noise", "dropout", "none"]
StateRule = Literal["grow", "old", "reset"]
_NEW_TILE: Final = 16


@dataclass(frozen=True)
class Growth:
    """What is asked of a growth; see `grow`."""

    width: int = 1
    depth: int = 1
    ffn: int | None = None
    heads: int | None = None
    kv_heads: int = 1
    layers: int | None = None
    vocabulary: int | None = None
    mode: DepthMode = "out0"
    where: Where | None = None
    blocks: Literal["diagonal", "uniform"] = "diagonal"
    symmetry: Symmetry = "noise"
    sigma: float = 0.1
    opened: float = 1.0
    state: StateRule = "grow"
    mup: bool = False
    seed: int = 0
    allow_approximate: bool = False


@dataclass(frozen=True)
class GrownFrom:
    """How a model was grown: what `verify_growth` compares with.

    Attributes:
        factors: of the spaces.
        sources: of the blocks.
        anatomy: of the old model.
        growth: what was asked for.
    """

    factors: Factors
    sources: tuple[LayerSource, ...]
    anatomy: Anatomy
    growth: Growth


@dataclass
class _Slot:
    """One Parameter of the larger model and where it comes from."""

    names: list[str]
    axes: Axes
    source: nn.Parameter | None
    is_new: bool
    value: torch.Tensor
    form: Any = None
    mask: torch.Tensor | None = None
    pattern: Pattern | None = None
    param: nn.Parameter = field(default_factory=lambda: nn.Parameter(torch.empty(0)))


_GROWN: "WeakKeyDictionary[nn.Module, GrownFrom]" = WeakKeyDictionary()


def grow(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **asked: Any) -> nn.Module:
    """Make a larger model that computes the same; the optimizer's whole state follows.

    The model stays as it is. The optimizer holds the parameters of the larger model afterwards, in
    the same groups, with moments that fit the gradients to come and the same step counts. Nothing
    is changed if an error is raised.

    Args:
        model: of a family that says how it grows: BERT, RoBERTa, DistilBERT, GPT-2, OPT, Llama,
            Qwen2, Mistral, `zoo.GPT`, `zoo.TinyEncoder`. Masked and compact layers stay so.
        optimizer: holds its parameters; None grows weights only.
        **asked: the fields of `Growth`:
            width: copies of everything: stream, heads and feed-forward part.
            depth: how many times as many blocks.
            ffn, heads: copies of one of them; None: as `width` says. A head keeps its size, so
                `heads` alone needs a family whose head size is a setting.
            kv_heads: how often each key and value head is repeated.
            layers: number of blocks, instead of `depth`.
            vocabulary: number of tokens; new ones begin as the mean of the old.
            mode: of new blocks. "out0": a copy that adds nothing yet; "ln0": norms that give
                nothing yet (not for gated feed-forward parts); "stack": plain copies and "random":
                fresh ones, which change the function.
            where: new blocks stand "after" their source, on "top" or at the "bottom"; None: after
                it, and on top for "stack".
            blocks: "diagonal" keeps each copy by itself at first; "uniform" lets all copies read
                all others (HyperCloning).
            symmetry: "noise" makes copies differ without changing the function; "dropout" trusts
                the model's own; "none" leaves them alike, and alike they will stay.
            sigma: of the noise, in standard deviations of each weight.
            opened: share of the weights between copies that may become nonzero; the others are
                zeros of a mask, in tiles of 16 x 16.
            state: "grow"; "old": new blocks begin without a state; "reset": all begin without.
            mup: hidden matrices learn more slowly by the factor of what they read, in groups of
                their own.
            seed: of everything drawn.
            allow_approximate: deepen models whose norms sit on the residual path, too, by copies.

    Raises:
        InputError: a family or parameter that is not known, factors that do not fit, state without
            a rule.
        ResourceError: the larger model and its state do not fit into memory.
    """
    growth = _checked(asked)
    _refuse_wrapped(model)
    anatomy = anatomy_of(model)
    old_axes = axes_of(model, anatomy)
    factors, sources = _numbers(model, anatomy, growth)
    _check_depth(anatomy, growth, sources)
    _check_symmetry(model, factors, growth)
    if optimizer is not None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            found = type(optimizer).__name__
            raise InputError(f"grow: expected a torch optimizer, got {found}.")
        check_growable(optimizer, {p: name for name, p in model.named_parameters()})
    _check_memory(model, optimizer, factors, len(sources) / max(anatomy.num_layers, 1))
    larger = built_larger(model, anatomy, factors, sources, growth.seed)
    record = GrownFrom(factors, sources, anatomy, growth)
    slots = _slots(model, larger, record, old_axes, optimizer)
    with torch.no_grad():
        _place(larger, slots)
        _copy_buffers(model, larger)
    if optimizer is not None:
        _move_optimizer(optimizer, slots, record, larger)
    _GROWN[larger] = record
    return larger


def grown_from(model: nn.Module) -> GrownFrom:
    """How a model was grown in this process."""
    if model not in _GROWN:
        raise InputError("the second model was not made by gossamer.grow in this process.")
    return _GROWN[model]


def _checked(asked: dict[str, Any]) -> Growth:
    known = Growth.__dataclass_fields__
    wrong = sorted(asked.keys() - known.keys())
    if wrong:
        raise InputError(f"grow: {wrong[0]!r} is not a setting; expected one of {', '.join(known)}.")
    growth = Growth(**asked)
    for name in ("width", "depth", "ffn", "heads", "kv_heads"):
        value = getattr(growth, name)
        if value is not None and (type(value) is not int or not 1 <= value <= MAX_FACTOR):
            raise InputError(
                f"grow: {name} must be a whole number from 1 to {MAX_FACTOR}, got {value!r}."
            )
    choices = {
        "mode": ("out0", "ln0", "stack", "random"),
        "where": ("after", "top", "bottom", None),
        "blocks": ("diagonal", "uniform"),
        "symmetry": ("noise", "dropout", "none"),
        "state": ("grow", "old", "reset"),
    }
    for name, allowed in choices.items():
        if getattr(growth, name) not in allowed:
            words = ", ".join(str(choice) for choice in allowed)
            raise InputError(f"grow: {name} must be one of {words}; got {getattr(growth, name)!r}.")
    if not 0 <= growth.sigma <= 10:
        raise InputError(f"grow: sigma must be in [0, 10], got {growth.sigma}.")
    if not 0 <= growth.opened <= 1:
        raise InputError(f"grow: opened must be in [0, 1], got {growth.opened}.")
    return growth


def _refuse_wrapped(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            raise InputError("grow: unwrap DistributedDataParallel first, and wrap the larger model.")
        why = carried_by_calls(module)
        if why is not None:
            raise InputError(
                f"grow: {name or 'the model'} cannot be rebuilt larger: {why}. Take that off first."
            )


def _numbers(
    model: nn.Module, anatomy: Anatomy, growth: Growth
) -> tuple[Factors, tuple[LayerSource, ...]]:
    """Factors of all spaces and the source of every block."""
    facts = anatomy.facts
    heads = growth.width if growth.heads is None else growth.heads
    ffn = growth.width if growth.ffn is None else growth.ffn
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
    if growth.kv_heads > 1:
        _check_kv_heads(model, anatomy, growth.kv_heads)
    sources = layer_sources(
        anatomy.num_layers,
        anatomy.num_layers * growth.depth if growth.layers is None else growth.layers,
        growth.where or ("top" if growth.mode == "stack" else "after"),
    )
    settings: Any = model.zoo_args() if hasattr(model, "zoo_args") else vars(model.config)  # type: ignore[operator,arg-type]
    tokens = int(settings[facts.vocabulary])
    extra = 0 if growth.vocabulary is None else growth.vocabulary - tokens
    if extra < 0:
        raise InputError(
            f"grow: vocabulary {growth.vocabulary} is smaller than the {tokens} tokens there are."
        )
    if (growth.width, ffn, heads, growth.kv_heads, extra) == (1, 1, 1, 1, 0) and (
        len(sources) == anatomy.num_layers
    ):
        raise InputError("grow: nothing grows. Give width, depth, ffn, heads, layers or vocabulary.")
    factors = Factors(
        stream=growth.width,
        query=heads,
        key=heads,
        ffn=ffn,
        spread=growth.kv_heads,
        vocabulary=extra,
        tied=_is_tied(model, anatomy),
        head_dim=_head_dim(model, anatomy),
    )
    return factors, sources


def _check_kv_heads(model: nn.Module, anatomy: Anatomy, factor: int) -> None:
    config: Any = getattr(model, "config", None)
    if not anatomy.facts.kv_heads or config is None:
        raise InputError(f"grow: a {anatomy.family} has one key and value head per query head.")
    queries = getattr(config, anatomy.facts.heads)
    keys = getattr(config, anatomy.facts.kv_heads)
    if queries % (keys * factor):
        raise InputError(
            f"grow: {queries} query heads cannot share {keys} x {factor} key and value heads evenly."
        )


def _is_tied(model: nn.Module, anatomy: Anatomy) -> bool:
    found: dict[str, set[int]] = {"table": set(), "head": set()}
    for name, module in model.named_modules():
        ends = [end for end in anatomy.facts.roles if f".{name}".endswith(f".{end}")]
        role = anatomy.facts.roles[max(ends, key=len)] if ends else ""
        weight = module._parameters.get("weight")
        if role in found and weight is not None and layer_of(name, anatomy) is None:
            found[role].add(id(weight))
    return bool(found["table"] & found["head"])


def _head_dim(model: nn.Module, anatomy: Anatomy) -> int:
    if not anatomy.num_layers:
        return 1
    path, _, attribute = anatomy.block.head_dim.rpartition(".")
    block = model.get_submodule(f"{anatomy.layers}.0")
    return int(getattr(block.get_submodule(path), attribute))


def _check_depth(anatomy: Anatomy, growth: Growth, sources: tuple[LayerSource, ...]) -> None:
    if not any(source.is_new for source in sources):
        return
    preserves = growth.mode in ("out0", "ln0")
    if preserves and not anatomy.norm_first:
        if growth.allow_approximate:
            return
        raise InputError(
            f"grow: the norms of this {anatomy.family} sit on the residual path, so no new block"
            " leaves the function unchanged. Grow its width, or take allow_approximate=True."
        )
    if growth.mode == "ln0" and len(anatomy.block.expansions) > 1:
        raise InputError(
            "grow: with mode='ln0' a gated feed-forward part would get no gradient ever"
            " (both factors are 0). Use mode='out0'."
        )


def _check_symmetry(model: nn.Module, factors: Factors, growth: Growth) -> None:
    copies = max(factors.stream, factors.query, factors.ffn)
    drops = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
    if copies == 1 or growth.symmetry == "noise" and growth.sigma > 0:
        return
    if not (drops and growth.symmetry == "dropout"):
        warnings.warn(
            f"grow: symmetry={growth.symmetry!r} and nothing in the model makes the copies differ:"
            " they get the same gradients, and the larger model stays the small one in disguise.",
            stacklevel=3,
        )


def _check_memory(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    factors: Factors,
    deeper: float,
) -> None:
    """The larger model, its gradients and its state, before anything is made."""
    params = {id(p): p for p in model.parameters()}.values()
    held = sum(p.numel() * p.element_size() for p in params)
    state = 0
    if optimizer is not None:
        tensors = [t for entry in optimizer.state.values() for t in entry.values()]
        state = sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
    largest = max(factors.stream, factors.query, factors.ffn)
    needed = int((2 * held + state) * largest * factors.stream * max(deeper, 1.0))
    free = available_bytes()
    if needed > free:
        raise ResourceError(
            f"grow: the larger model with gradients and state needs up to {needed / 2**30:.1f} GiB,"
            f" and {free / 2**30:.1f} GiB are free. Grow less, or on a larger machine."
        )


def _slots(
    model: nn.Module,
    larger: nn.Module,
    record: GrownFrom,
    old_axes: dict[str, Axes],
    optimizer: torch.optim.Optimizer | None,
) -> list[_Slot]:
    """Every Parameter of the larger model with its numbers; tied names share one."""
    growth, anatomy = record.growth, record.anatomy
    generator = torch.Generator().manual_seed(growth.seed)
    sparse = dict(sparse_layers(model))
    like = next(model.parameters())
    made: dict[Any, _Slot] = {}
    for name, axes in axes_of(larger, anatomy).items():
        source, is_new = _source_name(name, record)
        path, _, key = name.rpartition(".")
        slot_module = larger.get_submodule(path)
        fresh = slot_module._parameters[key]
        if source is None or (is_new and growth.mode == "random"):
            assert fresh is not None  # noqa: S101  (axes_of names only what is there)
            value = fresh.detach().to(like.device, like.dtype, copy=True)
            made[name] = _Slot([name], axes, None, True, _emptied(value, name, record))
            continue
        old_path, _, _ = source.rpartition(".")
        layer = sparse.get(old_path) if key == "weight" else None
        old = layer.trained() if layer is not None else model.get_submodule(old_path)._parameters[key]
        assert old is not None  # noqa: S101  (axes_of names only what is there)
        again = made.get((id(old), name if is_new else None))
        if again is not None:
            again.names.append(name)
            continue
        slot = _grown_slot(name, old_axes[source], old, layer, record, optimizer, generator)
        slot.is_new = is_new
        slot.value = _emptied(slot.value, name, record) if is_new else slot.value
        made[(id(old), name if is_new else None)] = slot
    return list(made.values())


def _grown_slot(
    name: str,
    axes: Axes,
    old: nn.Parameter,
    layer: Any,
    record: GrownFrom,
    optimizer: torch.optim.Optimizer | None,
    generator: torch.Generator,
) -> _Slot:
    growth, factors = record.growth, record.factors
    noise = growth.sigma if growth.symmetry == "noise" else 0.0
    numbers = master_of(optimizer, old)
    mask = None if layer is None else layer.mask()
    if layer is not None and layer.form == "compact":
        numbers = expand(numbers, layer.mask_bits, layer.matrix_shape[1]).view(layer.weight_shape)
    elif mask is not None:
        numbers = torch.where(mask.view_as(numbers), numbers, 0)
    new_mask, pattern = _mask_of(axes, mask, layer, record, numbers.shape, generator)
    breaker = Breaker(noise, growth.blocks == "uniform")
    if new_mask is None:
        value = grown_tensor(
            numbers, axes, factors, "value", breaker=breaker, generator=generator
        )
    else:
        value = _masked_value(numbers, axes, factors, noise, new_mask, generator)
    return _Slot([name], axes, old, False, value, layer, new_mask, pattern)


def _mask_of(
    axes: Axes,
    mask: torch.Tensor | None,
    layer: Any,
    record: GrownFrom,
    shape: torch.Size,
    generator: torch.Generator,
) -> tuple[torch.Tensor | None, Pattern | None]:
    """The mask of a grown weight; None if everything is kept."""
    factors, opened = record.factors, record.growth.opened
    between = axes.layout == "matrix" and factors.of(axes.read) > 1 and factors.of(axes.made) > 1
    if mask is None and (opened == 1.0 or not between):
        return None, None
    kept = torch.ones(shape, dtype=torch.bool) if mask is None else mask.cpu()
    own = grown_mask(kept, axes, factors, opened=False)
    free = grown_mask(torch.zeros_like(kept), axes, factors, opened=True)
    if opened < 1.0 and between:
        free &= _tiles(own.shape, opened, generator)
    whole = own | free
    if layer is None:
        tile = f"block:{_NEW_TILE}x{_NEW_TILE}"
        fits = not (own.shape[0] % _NEW_TILE or own.shape[1] % _NEW_TILE)
        pattern = parse_pattern(tile) if fits and _is_tiled(whole) else Unstructured()
    else:
        pattern = layer.pattern if _obeys(whole, layer.pattern) else Unstructured()
    return whole, pattern


def _obeys(mask: torch.Tensor, pattern: Pattern) -> bool:
    try:
        pattern.check_shape((mask.shape[0], mask.shape[1]))
        pattern.validate(mask)
    except PatternError:
        return False
    return True


def _tiles(shape: torch.Size, share: float, generator: torch.Generator) -> torch.Tensor:
    """A random share of the tiles of a matrix."""
    rows, columns = (-(-size // _NEW_TILE) for size in shape)
    chosen = torch.rand(rows, columns, generator=generator) < share
    wide = chosen.repeat_interleave(_NEW_TILE, 0).repeat_interleave(_NEW_TILE, 1)
    return wide[: shape[0], : shape[1]]


def _is_tiled(mask: torch.Tensor) -> bool:
    tiles = mask.unflatten(1, (-1, _NEW_TILE)).unflatten(0, (-1, _NEW_TILE))
    return bool((tiles.any(3).any(1) == tiles.all(3).all(1)).all())


def _masked_value(
    numbers: torch.Tensor,
    axes: Axes,
    factors: Factors,
    sigma: float,
    mask: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    """Values under a mask: noise between copies is taken back on the kept place of the copy's own.

    The sum over everything that reads one number stays the old weight exactly where the mask keeps
    both ends.
    """
    value = grown_tensor(numbers, axes, factors, "value")
    made, read = factors.of(axes.made), factors.of(axes.read)
    if not sigma or read == 1:
        return value * mask
    own = grown_tensor(torch.ones_like(numbers), axes, factors, "value") > 0
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
    noise *= sigma * float(numbers[numbers != 0].double().std(correction=0)) if numbers.any() else 0
    blocks = (axes.segments * made, value.shape[0] // (axes.segments * made), read, -1)
    kept, mine = mask.to(value.device).reshape(blocks), own.reshape(blocks)
    drawn = noise.reshape(blocks) * kept
    # Only where a row of blocks keeps a place twice or more can noise be balanced.
    many = kept.sum(2, keepdim=True)
    drawn = torch.where(many > 1, drawn - drawn.sum(2, keepdim=True) / many.clamp(min=1), 0) * kept
    del mine
    return (value + drawn.reshape(value.shape)) * mask.to(value.device)


def _source_name(name: str, record: GrownFrom) -> tuple[str | None, bool]:
    """The old slot behind a new one, None if it is fresh, and whether the block is new."""
    inside = layer_of(name, record.anatomy)
    if inside is None:
        return name, False
    source = record.sources[inside[0]]
    if source.layer is None:
        return None, True
    return f"{record.anatomy.layers}.{source.layer}.{inside[1]}", source.is_new


def _emptied(value: torch.Tensor, name: str, record: GrownFrom) -> torch.Tensor:
    """The value of a slot in a new block: zero where that makes the block add nothing."""
    inside = layer_of(name, record.anatomy)
    if inside is None:
        return value
    module, _, key = inside[1].rpartition(".")
    parts, mode = record.anatomy.block, record.growth.mode
    is_output = module in (parts.output, parts.down)
    if mode == "out0" and is_output:
        return torch.zeros_like(value)
    if mode == "ln0" and (module in parts.norms or key == "bias"):
        return torch.zeros_like(value)
    return value


def _place(larger: nn.Module, slots: list[_Slot]) -> None:
    """Put the Parameters where they belong, and layers into their forms."""
    for slot in slots:
        old = slot.source
        wants = True if old is None else old.requires_grad
        device = slot.value.device if old is None else old.device
        slot.param = nn.Parameter(slot.value.to(device), requires_grad=wants)
        for name in slot.names:
            path, _, key = name.rpartition(".")
            module = larger.get_submodule(path)
            there = module._parameters[key]
            if there is None or there.shape != slot.param.shape:
                found = None if there is None else list(there.shape)
                raise InputError(
                    f"grow: {name} would have shape {list(slot.param.shape)}, and the larger model"
                    f" expects {found}. Its settings do not say what its parameters are."
                )
            module._parameters[key] = slot.param
    for slot in slots:
        if slot.mask is not None and slot.pattern is not None:
            _sparsified(larger, slot)


def _sparsified(larger: nn.Module, slot: _Slot) -> None:
    path = slot.names[0].rpartition(".")[0]
    module = larger.get_submodule(path)
    mask, pattern = slot.mask, slot.pattern
    assert mask is not None and pattern is not None  # noqa: S101  (the caller looked)
    mask = mask.to(slot.param.device)
    masked = mask_in(larger, module, mask, pattern)
    if slot.form is not None and slot.form.form == "compact":
        values = nn.Parameter(gather(slot.param.detach(), mask), slot.param.requires_grad)
        compact = to_compact(masked, values, masked.mask_bits, pattern, slot.form.mode)
        replace_module(larger, masked, compact)
        slot.param = values


def _copy_buffers(model: nn.Module, larger: nn.Module) -> None:
    """Tensors that are not trained: those of the same name and shape are carried over."""
    old = dict(model.named_buffers())
    for name, buffer in larger.named_buffers():
        before = old.get(name)
        if before is not None and before.shape == buffer.shape and not name.endswith("mask_bits"):
            buffer.copy_(before)


def _move_optimizer(
    optimizer: torch.optim.Optimizer, slots: list[_Slot], record: GrownFrom, larger: nn.Module
) -> None:
    """The optimizer holds the larger parameters, in the groups of their sources."""
    growth, old_state = record.growth, dict(optimizer.state)
    homes = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    members: list[list[_Slot]] = [[] for _ in optimizer.param_groups]
    order = {p: i for i, p in enumerate(larger.parameters())}
    for slot in sorted(slots, key=lambda slot: order[slot.param]):
        home = homes.get(slot.source) if slot.source is not None else _group_like(slot, slots, homes)
        if home is not None:
            members[home].append(slot)
    new_state = {}
    for group in members:
        for slot in group:
            source = slot.source
            keeps = growth.state == "grow" or (growth.state == "old" and not slot.is_new)
            if keeps and source is not None and source in old_state:
                new_state[slot.param] = grown_state(optimizer, source, _grower(slot, record))
    split = [s.param for s in slots if s.source is not None and is_split(optimizer, s.source)]
    for group, chosen in zip(optimizer.param_groups, members, strict=True):
        group["params"] = [slot.param for slot in chosen]
    optimizer.state.clear()
    optimizer.state.update(new_state)
    if split and isinstance(optimizer, SmallStateOptimizer):
        optimizer.split_masters(split)
    if growth.mup:
        _slow_down(optimizer, members, record)


def _group_like(slot: _Slot, slots: list[_Slot], homes: dict[nn.Parameter, int]) -> int | None:
    """The group of the first parameter with as many dimensions: for blocks without a source."""
    for other in slots:
        if other.source in homes and other.param.ndim == slot.param.ndim:
            return homes[other.source]  # type: ignore[index]
    return min(homes.values(), default=None)


def _grower(slot: _Slot, record: GrownFrom) -> Any:
    """How tensors of the old Parameter's shape become tensors of the new one's."""
    layer, mask = slot.form, slot.mask
    is_compact = layer is not None and layer.form == "compact"

    def grow_one(tensor: torch.Tensor, quantity: Quantity) -> torch.Tensor:
        if is_compact:
            dense = expand(tensor, layer.mask_bits, layer.matrix_shape[1])
            tensor = dense.view(layer.weight_shape)
        grown = grown_tensor(tensor, slot.axes, record.factors, quantity)
        return gather(grown, mask) if is_compact and mask is not None else grown

    return grow_one


def _slow_down(
    optimizer: torch.optim.Optimizer, members: list[list[_Slot]], record: GrownFrom
) -> None:
    """Hidden matrices that read k copies learn with 1 / k of the rate."""
    for index, group in enumerate(list(optimizer.param_groups)):
        by_factor: dict[int, list[nn.Parameter]] = {}
        for slot in members[index]:
            factor = record.factors.of(slot.axes.read) if not slot.axes.is_head else 1
            by_factor.setdefault(factor, []).append(slot.param)
        for factor, params in sorted(by_factor.items()):
            if factor == 1:
                continue
            slower = {key: value for key, value in group.items() if key != "params"}
            for key in ("lr", "initial_lr"):
                if key in slower:
                    slower[key] = slower[key] / factor
            group["params"] = by_factor.get(1, [])
            optimizer.add_param_group({**slower, "params": params})


def named_growth(growth: Growth) -> Iterator[tuple[str, Any]]:
    """What differs from a growth that does nothing, for logs."""
    plain = replace(growth, width=1, depth=1, ffn=None, heads=None, kv_heads=1)
    plain = replace(plain, layers=None, vocabulary=None)
    for name in Growth.__dataclass_fields__:
        if getattr(growth, name) != getattr(plain, name):
            yield name, getattr(growth, name)
