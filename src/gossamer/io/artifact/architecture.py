# SPDX-License-Identifier: Apache-2.0
"""Model to data and back, through closed tables: torch.nn layers, zoo models, transformers, graphs.

A description is of the dense skeleton; which of its layers are masked or compact is said by the
tensors. Skeletons are built on the meta device, so no size in a file costs memory before it has
been compared with the tensors that are really there.
"""

from typing import Any

from torch import nn

from gossamer.errors import ArtifactError, TargetError
from gossamer.io.artifact.fitting import all_slots, tied_names
from gossamer.io.artifact.graph_architecture import build_graph, describe_graph
from gossamer.io.artifact.inventory import own_slots
from gossamer.io.artifact.layer_table import CONTAINERS, ENCODER, LAYERS, read_args
from gossamer.io.artifact.manifest import (
    ArchitectureNode,
    Argument,
    GraphNode,
    SlimBlock,
    TokenPruning,
    TorchNode,
    TransformersNode,
    ZooNode,
)
from gossamer.io.artifact.skeleton import SkeletonBuilder, shrink
from gossamer.io.huggingface import TRANSFORMERS_CLASSES, build_transformers, is_transformers
from gossamer.nn.forms import can_mask
from gossamer.nn.layer_kinds import title_of
from gossamer.nn.operator_graph import GraphModule
from gossamer.nn.surgery.slimming import conv1d_paths, conv1d_to_linear, unit_counts
from gossamer.nn.tokens.token_pruning import TokenPrunedEncoder, add_token_pruning
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
    name = type(model).__name__
    node: ArchitectureNode | None
    if is_transformers(model):
        node = TransformersNode(name=name) if name in TRANSFORMERS_CLASSES else None
    elif isinstance(model, GraphModule):
        node = describe_graph(model, lambda layer, path: _describe(layer, path, 0))
    else:
        node = _describe(model, "", 0)
    if node is None:
        return None
    try:
        rebuilt = build(node, max_tensors=2**31, config=config)
        if isinstance(node, TransformersNode) and conv1d_paths(rebuilt) and not conv1d_paths(model):
            node = node.model_copy(update={"linear": True})
            conv1d_to_linear(rebuilt)
        if isinstance(node, ZooNode | TransformersNode):
            node = node.model_copy(update={"slim": _slim_blocks(model, rebuilt)})
            shrink(rebuilt, node.slim)
        if isinstance(node, TransformersNode):
            node = node.model_copy(update={"tokens": _token_pruning_of(model)})
            _prune_tokens(rebuilt, node.tokens)
    except ArtifactError:
        # Beyond the limits of the reader, such as ten thousand modules.
        return None
    same = _structure(model) == _structure(rebuilt) and _ties_are_kept(model, rebuilt)
    return node if same else None


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
        return build_graph(node, SkeletonBuilder(max_tensors))
    if not isinstance(node, TransformersNode):
        return SkeletonBuilder(max_tensors).build(node)
    model = build_transformers(node.name, config, max_tensors=max_tensors, device=device)
    if node.linear:
        conv1d_to_linear(model)
    shrink(model, node.slim)
    _prune_tokens(model, node.tokens)
    return model


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


def _token_pruning_of(model: nn.Module) -> TokenPruning | None:
    """What the encoder of `model` that prunes tokens is set to; None if there is none."""
    for module in model.modules():
        if isinstance(module, TokenPrunedEncoder):
            return TokenPruning(
                phase=module.phase, soft=module.soft, temperature=module.temperature
            )
    return None


def _prune_tokens(model: nn.Module, wanted: TokenPruning | None) -> None:
    """Put an encoder that prunes tokens into a skeleton, if the file asks for one."""
    if wanted is None:
        return
    try:
        encoder = add_token_pruning(model, soft=wanted.soft)
    except TargetError as error:
        raise ArtifactError(f"architecture.tokens: {error}") from error
    encoder.phase, encoder.temperature = wanted.phase, wanted.temperature


def _describe(module: nn.Module, key: str, depth: int) -> TorchNode | ZooNode | None:
    if depth > MAX_NESTING or len(key) > MAX_KEY:
        return None
    kind = type(module)
    if kind in _ZOO_NAMES:
        return ZooNode(name=_ZOO_NAMES[kind], args=module.zoo_args(), key=key)  # type: ignore[operator]
    if kind in _CONTAINER_NAMES:
        return _describe_container(_CONTAINER_NAMES[kind], module, key, depth)
    if kind is nn.TransformerEncoder:
        return _describe_encoder(module, key, depth)
    name = _layer_name(module)
    args = None if name is None else read_args(LAYERS[name], module)
    return None if name is None or args is None else TorchNode(name=name, args=args, key=key)


def _layer_name(module: nn.Module) -> str | None:
    """The row of the table a layer belongs to; sparse layers belong to the one they replace."""
    return title_of(module) if can_mask(module) else _LAYER_NAMES.get(type(module))


def _describe_container(name: str, module: nn.Module, key: str, depth: int) -> TorchNode | None:
    children = []
    for child_key, child in module._modules.items():
        node = None if child is None else _describe(child, child_key, depth + 1)
        if node is None:
            return None
        children.append(node)
    return TorchNode(name=name, children=tuple(children), key=key)


def _describe_encoder(module: Any, key: str, depth: int) -> TorchNode | None:
    layers = [_describe(layer, "layer", depth + 1) for layer in module.layers]
    if not layers or layers[0] is None or any(layer != layers[0] for layer in layers):
        return None
    children: list[TorchNode | ZooNode] = [layers[0]]
    if module.norm is not None:
        norm = _describe(module.norm, "norm", depth + 1)
        if norm is None:
            return None
        children.append(norm)
    args: dict[str, Argument] = {
        "num_layers": len(layers),
        "enable_nested_tensor": bool(module.enable_nested_tensor),
    }
    return TorchNode(name=ENCODER, args=args, children=tuple(children), key=key)


def _ties_are_kept(model: nn.Module, rebuilt: nn.Module) -> bool:
    """Whether everything the rebuilt model ties is tied in the model too; more is no harm."""
    slots = all_slots(model)
    return all(
        len({slots[name].identity for name in names}) == 1
        for names in tied_names(all_slots(rebuilt))
    )


def _structure(model: nn.Module) -> dict[str, object]:
    """Per path: class, settings and tensor shapes. Equal for a model and its faithful rebuild."""
    result: dict[str, object] = {}
    stack: list[tuple[str, nn.Module]] = [("", model)]
    while stack:
        path, module = stack.pop()
        name = _layer_name(module)
        what = type(module) if name is None else (name, read_args(LAYERS[name], module))
        shapes = {slot.attribute: slot.shape for slot in own_slots(path, module)}
        result[path] = (what, shapes)
        for key, child in module._modules.items():
            if child is not None:
                stack.append((f"{path}.{key}", child))
    return result
