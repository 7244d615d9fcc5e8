# SPDX-License-Identifier: Apache-2.0
"""Model to data and back, through closed tables: torch.nn layers, zoo models, transformers, graphs.

A description is of the dense skeleton; which of its layers are masked or compact is said by the
tensors. Skeletons are built on the meta device, so no size in a file costs memory before it has
been compared with the tensors that are really there.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from gossamer.errors import ArtifactError, InputError, PatternError, TargetError
from gossamer.io.artifact.inventory import all_slots, own_slots, tied_names
from gossamer.io.artifact.manifest import (
    ArchitectureNode,
    Argument,
    AttentionEntry,
    ChannelsEntry,
    GraphConstant,
    GraphInput,
    GraphNode,
    GraphOutput,
    GraphStep,
    PartNode,
    SlimBlock,
    TokenPruning,
    TorchNode,
    TransformersNode,
    ZooNode,
)
from gossamer.io.artifact.skeleton import (
    CONTAINERS,
    ENCODER,
    LAYERS,
    MAX_NODES,
    SkeletonBuilder,
    read_args,
    shrink,
)
from gossamer.io.huggingface import build_transformers, is_transformers
from gossamer.io.safe_files.dtypes import DTYPE_NAMES, dtype_name
from gossamer.nn.attention import (
    AttentionState,
    SparseAttention,
    attention_states,
    restore_attention,
)
from gossamer.nn.forms import can_mask
from gossamer.nn.layer_kinds import kind_of
from gossamer.nn.layers.tables import table_of
from gossamer.nn.operator_graph import GraphModule, OperatorPlan, PlanInput, Step
from gossamer.nn.relufication.states import ReluState, relu_states, restore_relus
from gossamer.nn.surgery.channels import LayerSizes, cut_sizes, restore_cut
from gossamer.nn.surgery.known_layers import has_other_layers, to_known_layers
from gossamer.nn.surgery.slimming import unit_counts
from gossamer.nn.tokens import TokenPrunedEncoder, add_token_pruning
from gossamer.zoo import ZOO

# Two levels of JSON per nested container must stay below the limit of the manifest.
MAX_NESTING = 12
MAX_KEY = 256
_LAYER_NAMES = {layer.build: name for name, layer in LAYERS.items()}
_CONTAINER_NAMES = {build: name for name, build in CONTAINERS.items()}
_ZOO_NAMES: dict[type[nn.Module], str] = {build: name for name, build in ZOO.items()}


def describe(model: nn.Module, config: dict[str, Any] | None = None) -> ArchitectureNode | None:
    """The architecture as data; None if a rebuilt model would not be the same.

    That is: it has parts that are in no table, hooks, replaced submodules or changed settings.
    """
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return None
    node: ArchitectureNode
    try:
        if is_transformers(model):
            node = TransformersNode(name=type(model).__name__)
        elif isinstance(model, GraphModule):
            node = _describe_graph(model)
        else:
            node = _describe(model, "", 0)
        rebuilt = build(node, max_tensors=2**31, config=config)
        others = isinstance(node, TransformersNode) and has_other_layers(rebuilt)
        if others and not has_other_layers(model):
            node = node.model_copy(update={"linear": True})
            to_known_layers(rebuilt)
        if isinstance(node, ZooNode | TransformersNode):
            node = node.model_copy(update={"slim": _slim_blocks(model, rebuilt)})
            shrink(rebuilt, node.slim)
        for part in model.modules():
            if isinstance(node, TransformersNode) and isinstance(part, TokenPrunedEncoder):
                found = TokenPruning(phase=part.phase, soft=part.soft, temperature=part.temperature)
                node = node.model_copy(update={"tokens": found})
                _prune_tokens(rebuilt, found)
                break
        put_channels(rebuilt, channels_of(model), "architecture")
        put_relus(rebuilt, relu_states(model), "architecture")
        put_patterns(rebuilt, patterns_of(model), "architecture")
    except ArtifactError:
        # In no table, or beyond the limits of the reader, such as ten thousand modules.
        return None
    if _structure(model) != _structure(rebuilt):
        return None
    # Everything the rebuilt model ties must be tied in the model too; more is no harm.
    slots = all_slots(model)
    ties = [{slots[name].identity for name in names} for names in tied_names(all_slots(rebuilt))]
    return node if all(len(tensors) == 1 for tensors in ties) else None


def build(
    node: ArchitectureNode,
    *,
    max_tensors: int,
    config: dict[str, Any] | None = None,
    device: str = "meta",
) -> nn.Module:
    """The described skeleton, on the meta device unless told otherwise.

    Args:
        node: from a checked manifest.
        max_tensors: refuse to build more tensors than this; pass the number the file names.
        config: the content of config.json, for transformers models.
        device: for transformers models, whose buffers are computed and not stored.
    """
    if isinstance(node, GraphNode):
        return _build_graph(node, SkeletonBuilder(max_tensors))
    if not isinstance(node, TransformersNode):
        return SkeletonBuilder(max_tensors).build(node)
    model = build_transformers(node.name, config, max_tensors=max_tensors, device=device)
    if node.linear:
        to_known_layers(model)
    shrink(model, node.slim)
    _prune_tokens(model, node.tokens)
    return model


def patterns_of(model: nn.Module) -> dict[str, AttentionEntry]:
    """What the attention layers of a model attend to, where that is not everything."""
    return {name: AttentionEntry(**vars(s)) for name, s in attention_states(model).items()}


def put_patterns(model: nn.Module, patterns: Mapping[str, AttentionEntry], where: str) -> None:
    """Let the attention layers of a skeleton or of a user's model attend to what a file says."""
    if not patterns:
        return
    try:
        # Layers that are replaced take the tensors that are there: none is made.
        with torch.device("meta") if _is_meta(model) else nullcontext():
            states = {n: AttentionState(**entry.model_dump()) for n, entry in patterns.items()}
            restore_attention(model, states)
    except (InputError, PatternError, TargetError) as error:
        raise ArtifactError(f"{where}: attention: {error}") from error


def channels_of(model: nn.Module) -> dict[str, ChannelsEntry]:
    """Sizes of the layers of a model that lost channels."""
    return {name: ChannelsEntry(**vars(sizes)) for name, sizes in cut_sizes(model).items()}


def put_channels(model: nn.Module, entries: Mapping[str, ChannelsEntry], where: str) -> None:
    """Give layers of a skeleton or of a user's model the sizes that a file says."""
    if not entries:
        return
    try:
        with torch.no_grad():
            restore_cut(
                model, {n: LayerSizes(**entry.model_dump()) for n, entry in entries.items()}
            )
    except (InputError, TargetError) as error:
        raise ArtifactError(f"{where}: channels: {error}") from error


def put_relus(model: nn.Module, states: Mapping[str, ReluState], where: str) -> None:
    """Let a skeleton or a user's model be relufied as a file says."""
    try:
        with torch.device("meta") if _is_meta(model) else nullcontext():
            restore_relus(model, dict(states))
    except TargetError as error:
        raise ArtifactError(f"{where}: relus: {error}") from error


def _is_meta(model: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in model.parameters())


def _slim_blocks(model: nn.Module, full: nn.Module) -> tuple[SlimBlock, ...]:
    """Unit counts of `model`; none if they are those of `full`, or if its blocks are unknown."""
    try:
        found, expected = unit_counts(model), unit_counts(full)
    except TargetError:
        # Masked or compact layers: nothing has been cut out of such a model.
        return ()
    if found == expected or len(found) != len(expected):
        return ()
    return tuple(SlimBlock(heads=heads, filters=filters) for heads, filters in found)


def _prune_tokens(model: nn.Module, wanted: TokenPruning | None) -> None:
    """Put an encoder that prunes tokens into a skeleton, if the file asks for one."""
    if wanted is None:
        return
    try:
        encoder = add_token_pruning(model, soft=wanted.soft)
    except TargetError as error:
        raise ArtifactError(f"architecture.tokens: {error}") from error
    encoder.phase, encoder.temperature = wanted.phase, wanted.temperature


def _describe(module: Any, key: str, depth: int) -> PartNode:
    unknown = ArtifactError(f"{key!a}: a {type(module).__name__} is in no table.")
    if module is None or depth > MAX_NESTING or len(key) > MAX_KEY:
        raise unknown
    kind = type(module)
    if kind in _ZOO_NAMES:
        return ZooNode(name=_ZOO_NAMES[kind], args=module.zoo_args(), key=key)
    if kind in _CONTAINER_NAMES:
        parts = module._modules.items()
        children = tuple(_describe(child, name, depth + 1) for name, child in parts)
        return TorchNode(name=_CONTAINER_NAMES[kind], children=children, key=key)
    if kind is nn.TransformerEncoder:
        layers = [_describe(layer, "layer", depth + 1) for layer in module.layers]
        if not layers or any(layer != layers[0] for layer in layers):
            raise unknown
        norm = [] if module.norm is None else [_describe(module.norm, "norm", depth + 1)]
        nested = bool(module.enable_nested_tensor)
        settings: dict[str, Argument] = {"num_layers": len(layers), "enable_nested_tensor": nested}
        return TorchNode(name=ENCODER, args=settings, children=(layers[0], *norm), key=key)
    name = _layer_name(module)
    args = None if name is None else read_args(LAYERS[name], module)
    if name is None or args is None:
        raise unknown
    return TorchNode(name=name, args=args, key=key)


def _layer_name(module: nn.Module) -> str | None:
    """The row of the table a layer belongs to; sparse layers belong to the one they replace."""
    table = table_of(module)
    if table is not None:
        return table.stock_name
    kind = kind_of(module) if can_mask(module) else None
    return _LAYER_NAMES.get(type(module)) if kind is None else kind.stock[0].__name__


def _describe_graph(model: GraphModule) -> GraphNode:
    plan = model.plan
    paths = dict.fromkeys(step.layer for step in plan.steps if step.layer is not None)
    layers: Any = tuple(_describe(model.get_submodule(path), path, 0) for path in paths)
    if not all(isinstance(layer, TorchNode) for layer in layers):
        raise ArtifactError("layers of a graph are layers of torch.nn.")
    tensors = {name: model.constants.get_buffer(name) for name in plan.constants}
    return GraphNode(
        inputs=tuple(GraphInput(**vars(entry)) for entry in plan.inputs),
        constants=tuple(
            GraphConstant(name=name, shape=tuple(tensor.shape), dtype=dtype_name(tensor.dtype))
            for name, tensor in tensors.items()
        ),
        layers=layers,
        steps=tuple(GraphStep(**vars(step)) for step in plan.steps),
        outputs=tuple(GraphOutput(name=name, value=value) for name, value in plan.outputs),
    )


def _build_graph(node: GraphNode, builder: SkeletonBuilder) -> GraphModule:
    """The described graph on the meta device; every step is checked against the table."""
    where = "architecture"
    if len(node.layers) > MAX_NODES:
        raise ArtifactError(f"{where}: describes more than {MAX_NODES} modules.")
    layers = {layer.key: builder.build(layer) for layer in node.layers}
    if len(layers) != len(node.layers):
        raise ArtifactError(f"{where}: two layers have one name.")
    constants = {}
    for entry in node.constants:
        if entry.dtype not in DTYPE_NAMES:
            raise ArtifactError(f"{where}: {entry.name!a} is of the unknown type {entry.dtype!a}.")
        constants[entry.name] = torch.empty(
            entry.shape, dtype=DTYPE_NAMES[entry.dtype], device="meta"
        )
    plan = OperatorPlan(
        inputs=tuple(PlanInput(**vars(entry)) for entry in node.inputs),
        constants=tuple(entry.name for entry in node.constants),
        steps=tuple(_step(step) for step in node.steps),
        outputs=tuple((entry.name, entry.value) for entry in node.outputs),
    )
    try:
        return GraphModule(plan, layers, constants, where)
    except (InputError, KeyError) as error:
        raise ArtifactError(f"{error}") from error


def _step(step: GraphStep) -> Step:
    attributes = {name: value for name, value in step.attributes.items() if value is not None}
    return Step(**{**vars(step), "attributes": attributes})


def _class_of(module: nn.Module) -> type[nn.Module]:
    """The class of a module; torch makes a new one for every module whose weight is computed."""
    kind = type(module)
    return kind.__bases__[0] if is_parametrized(module) else kind


def _structure(model: nn.Module) -> dict[str, object]:
    """Per path: class, settings and tensor shapes. Equal for a model and its faithful rebuild.

    Not the layout of gradients of tables: whoever trains a zoo model by rows sets it.
    """
    result: dict[str, object] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        name = _layer_name(module)
        args = None if name is None else read_args(LAYERS[name], module)
        settings = args and {key: value for key, value in args.items() if key != "sparse"}
        what: object = _class_of(module) if name is None else (name, settings)
        if isinstance(module, SparseAttention):
            what = (what, module.kv_heads, module.dropout, module.batch_first)
        result[path] = (what, {slot.attribute: slot.shape for slot in own_slots(path, module)})
    return result
