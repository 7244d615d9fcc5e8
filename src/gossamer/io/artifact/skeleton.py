# SPDX-License-Identifier: Apache-2.0
"""Builds described torch.nn and zoo models on the meta device, within a budget of tensors.

First the torch.nn layers a manifest may name, with the arguments each one takes. Closed: nothing
outside this table is ever built, and every argument is checked before the constructor sees it.
"""

import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gossamer.errors import ArtifactError
from gossamer.io.artifact.manifest import Argument, PartNode, SlimBlock, TorchNode, ZooNode
from gossamer.io.safe_files import MAX_DIM, MAX_DIMS
from gossamer.nn.layers.experts import GroupedLinear
from gossamer.nn.surgery.slimming import cut_units, find_groups
from gossamer.zoo import ZOO

MAX_LAYERS = 1024


@dataclass(frozen=True)
class ArgumentRule:
    """What an argument may be."""

    expected: str
    accepts: Callable[[Any], bool]


def _whole(expected: str, low: int, high: int) -> ArgumentRule:
    return ArgumentRule(expected, lambda v: type(v) is int and low <= v <= high)


def _or_none(kind: ArgumentRule) -> ArgumentRule:
    return ArgumentRule(f"{kind.expected} or null", lambda v: v is None or kind.accepts(v))


def _choice(*values: str) -> ArgumentRule:
    return ArgumentRule(f"one of {', '.join(values)}", lambda v: v in values)


def _sizes(low: int) -> ArgumentRule:
    one = _whole("", low, MAX_DIM)
    return ArgumentRule(
        f"an integer >= {low} or a list of them",
        lambda v: (
            len(v) <= MAX_DIMS and all(map(one.accepts, v)) if type(v) is tuple else one.accepts(v)
        ),
    )


SIZE = _whole("an integer in [0, 2^40]", 0, MAX_DIM)
COUNT = _whole("an integer in [1, 2^40]", 1, MAX_DIM)
DIM = _whole("an integer in [-8, 8]", -MAX_DIMS, MAX_DIMS)
FLAG = ArgumentRule("true or false", lambda v: type(v) is bool)
REAL = ArgumentRule("a finite number", lambda v: type(v) in (int, float) and math.isfinite(v))
SIZES = _sizes(0)
STEPS = _sizes(1)
PADDING = ArgumentRule(
    "a size, a list of sizes, 'same' or 'valid'",
    lambda v: v in ("same", "valid") or SIZES.accepts(v),
)
# What an argument may be wherever no row says otherwise; names with one rule are one text.
_RULES = {
    name: rule
    for names, rule in (
        ("in_features out_features in_channels out_channels num_features", SIZE),
        ("num_embeddings embedding_dim num_channels", SIZE),
        ("groups num_groups embed_dim num_heads kdim vdim d_model nhead dim_feedforward", COUNT),
        ("num_experts", COUNT),
        ("num_layers", _whole(f"an integer in [1, {MAX_LAYERS}]", 1, MAX_LAYERS)),
        ("start_dim end_dim", DIM),
        ("dim", _or_none(DIM)),
        ("padding_idx", _or_none(_whole("an integer", -MAX_DIM, MAX_DIM))),
        ("bias inplace affine track_running_stats elementwise_affine", FLAG),
        ("ceil_mode count_include_pad", FLAG),
        ("scale_grad_by_freq sparse include_last_offset return_indices", FLAG),
        ("add_bias_kv add_zero_attn batch_first norm_first enable_nested_tensor", FLAG),
        ("eps layer_norm_eps norm_type negative_slope alpha beta threshold p dropout", REAL),
        ("momentum max_norm", _or_none(REAL)),
        ("normalized_shape padding", SIZES),
        ("kernel_size stride dilation output_size", STEPS),
        ("divisor_override", _or_none(COUNT)),
        ("padding_mode", _choice("zeros", "reflect", "replicate", "circular")),
        ("approximate", _choice("none", "tanh")),
        ("mode", _choice("sum", "mean", "max")),
        ("activation", _choice("relu", "gelu")),
    )
    for name in names.split()
}

Read = Callable[[Any], Argument]


@dataclass(frozen=True)
class Layer:
    """One row of the table. `read` has the arguments that are no attribute of the same name."""

    build: type[nn.Module]
    args: dict[str, ArgumentRule]
    read: dict[str, Read]


_CONV = "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode"
_BATCH_NORM = "num_features eps momentum affine track_running_stats"
# Layers, and the names of their arguments.
_ARGUMENTS: dict[type[nn.Module], str] = {
    nn.Linear: "in_features out_features bias",
    GroupedLinear: "num_experts in_features out_features bias",
    nn.Conv1d: _CONV,
    nn.Conv2d: _CONV,
    nn.Embedding: "num_embeddings embedding_dim padding_idx max_norm norm_type scale_grad_by_freq"
    " sparse",
    nn.EmbeddingBag: "num_embeddings embedding_dim max_norm norm_type scale_grad_by_freq mode"
    " sparse include_last_offset padding_idx",
    nn.LayerNorm: "normalized_shape eps elementwise_affine bias",
    nn.RMSNorm: "normalized_shape eps elementwise_affine",
    nn.GroupNorm: "num_groups num_channels eps affine",
    nn.BatchNorm1d: _BATCH_NORM,
    nn.BatchNorm2d: _BATCH_NORM,
    nn.ReLU: "inplace",
    nn.LeakyReLU: "negative_slope inplace",
    nn.ELU: "alpha inplace",
    nn.GELU: "approximate",
    nn.SiLU: "inplace",
    nn.Mish: "inplace",
    nn.Hardswish: "inplace",
    nn.Softplus: "beta threshold",
    nn.Tanh: "",
    nn.Sigmoid: "",
    nn.Softmax: "dim",
    nn.LogSoftmax: "dim",
    nn.Dropout: "p inplace",
    nn.Dropout2d: "p inplace",
    nn.Identity: "",
    nn.Flatten: "start_dim end_dim",
    nn.MaxPool2d: "kernel_size stride padding dilation return_indices ceil_mode",
    nn.AvgPool2d: "kernel_size stride padding ceil_mode count_include_pad divisor_override",
    nn.AdaptiveAvgPool2d: "output_size",
    nn.MultiheadAttention: "embed_dim num_heads dropout bias add_bias_kv add_zero_attn kdim vdim"
    " batch_first",
    nn.TransformerEncoderLayer: "d_model nhead dim_feedforward dropout activation layer_norm_eps"
    " batch_first norm_first bias",
}
# Rules that are other than those of the name.
_OTHER_RULES: dict[type[nn.Module], dict[str, ArgumentRule]] = {
    nn.Conv1d: {"padding": PADDING},
    nn.Conv2d: {"padding": PADDING},
    nn.RMSNorm: {"eps": _or_none(REAL)},
}
# None is no legal activation, so an unknown function makes the layer indescribable.
_ACTIVATIONS = {functional.relu: "relu", functional.gelu: "gelu"}
# Arguments that are no attribute of the same name.
_READ: dict[type[nn.Module], dict[str, Read]] = {
    nn.LayerNorm: {"bias": lambda m: m.bias is not None or not m.elementwise_affine},
    nn.MultiheadAttention: {
        "bias": lambda m: m.in_proj_bias is not None,
        "add_bias_kv": lambda m: m.bias_k is not None,
    },
    nn.TransformerEncoderLayer: {
        "d_model": lambda m: m.self_attn.embed_dim,
        "nhead": lambda m: m.self_attn.num_heads,
        "dim_feedforward": lambda m: m.linear1.out_features,
        "dropout": lambda m: m.dropout.p,
        "activation": lambda m: _ACTIVATIONS.get(m.activation),
        "layer_norm_eps": lambda m: m.norm1.eps,
        "batch_first": lambda m: m.self_attn.batch_first,
        "bias": lambda m: m.linear1.bias is not None,
    },
}
LAYERS = {
    kind.__name__: Layer(
        kind,
        {name: _RULES[name] for name in names.split()} | _OTHER_RULES.get(kind, {}),
        _READ.get(kind, {"bias": lambda m: m.bias is not None}),
    )
    for kind, names in _ARGUMENTS.items()
}

CONTAINERS: dict[str, type[nn.Module]] = {
    kind.__name__: kind for kind in (nn.Sequential, nn.ModuleList, nn.ModuleDict)
}
# Takes one described layer and, optionally, one described norm.
ENCODER = "TransformerEncoder"
ENCODER_ARGS = {name: _RULES[name] for name in ("num_layers", "enable_nested_tensor")}


def read_args(layer: Layer, module: nn.Module) -> dict[str, Argument] | None:
    """The constructor arguments of `module`, None if one of them cannot be described."""
    args: dict[str, Argument] = {}
    for name, kind in layer.args.items():
        read = layer.read.get(name)
        try:
            value = getattr(module, name) if read is None else read(module)
        except AttributeError:
            return None  # a user put another module where the setting is read
        value = tuple(value) if isinstance(value, list | tuple) else value
        if not kind.accepts(value):
            return None
        args[name] = value
    return args


MAX_NODES = 10_000
# What constructors raise for arguments that pass the table but contradict each other.
_BUILD_ERRORS = (TypeError, ValueError, KeyError, AssertionError, RuntimeError, ArithmeticError)


@dataclass
class SkeletonBuilder:
    """Turns nodes into modules; refuses before it builds more tensors than are left."""

    tensors_left: int

    def build(self, node: PartNode) -> nn.Module:
        """The module behind `node`, on the meta device."""
        if _count_nodes(node) > MAX_NODES:
            raise ArtifactError(f"architecture: describes more than {MAX_NODES} modules.")
        with warnings.catch_warnings(), torch.device("meta"):
            # Zero-sized layers and unusable nested tensors warn; whoever built the model saw that.
            warnings.simplefilter("ignore")
            return self._node(node, "architecture")

    def _node(self, node: PartNode, where: str) -> nn.Module:
        where = f"{where}.{ascii(node.key)[1:-1]}" if node.key else where
        if isinstance(node, ZooNode):
            if node.name not in ZOO:
                raise _unknown(where, "zoo model", node.name, ZOO)
            model = self._counted(lambda: ZOO[node.name](**node.args), where)
            shrink(model, node.slim)
            return model
        if node.name in CONTAINERS:
            return self._container(node, where)
        if node.name == ENCODER:
            return self._encoder(node, where)
        if node.name not in LAYERS:
            raise _unknown(where, "layer", node.name, (*LAYERS, *CONTAINERS, ENCODER))
        layer = LAYERS[node.name]
        _check_args(node, layer.args, where)
        if node.children:
            raise ArtifactError(f"{where}: {node.name} takes no children.")
        return self._counted(lambda: layer.build(**node.args), where)

    def _container(self, node: TorchNode, where: str) -> nn.Module:
        _check_args(node, {}, where)
        if len({child.key for child in node.children}) != len(node.children):
            raise ArtifactError(f"{where}: two children have the same key.")
        built = OrderedDict((child.key, self._node(child, where)) for child in node.children)
        if node.name == "ModuleList":
            if list(built) != [str(index) for index in range(len(built))]:
                raise ArtifactError(f"{where}: the keys of a ModuleList must be 0, 1, 2, ...")
            return nn.ModuleList(built.values())
        return self._counted(lambda: CONTAINERS[node.name](built), where, num_tensors=0)

    def _encoder(self, node: TorchNode, where: str) -> nn.Module:
        _check_args(node, ENCODER_ARGS, where)
        if [child.key for child in node.children] not in (["layer"], ["layer", "norm"]):
            raise ArtifactError(f"{where}: {ENCODER} takes one child 'layer' and maybe 'norm'.")
        built: dict[str, Any] = {child.key: self._node(child, where) for child in node.children}
        layer, settings = built.pop("layer"), {**node.args, **built}
        # The constructor copies the layer, so the copies are counted before they are made.
        self._spend((settings["num_layers"] - 1) * _count(layer), where)
        return self._counted(lambda: nn.TransformerEncoder(layer, **settings), where, num_tensors=0)

    def _counted(
        self, construct: Callable[[], nn.Module], where: str, num_tensors: int | None = None
    ) -> nn.Module:
        try:
            module = construct()
        except _BUILD_ERRORS as error:
            raise ArtifactError(
                f"{where}: its arguments are refused ({ascii(str(error))[1:200]})."
            ) from error
        self._spend(_count(module) if num_tensors is None else num_tensors, where)
        return module

    def _spend(self, num_tensors: int, where: str) -> None:
        self.tensors_left -= num_tensors
        if self.tensors_left < 0:
            raise ArtifactError(f"{where}: describes more tensors than the artifact holds.")


def _count(module: nn.Module) -> int:
    return len([*module.parameters(), *module.buffers()])


def _count_nodes(node: PartNode) -> int:
    # Not deeper than JSON may be.
    return 1 + sum(map(_count_nodes, node.children if isinstance(node, TorchNode) else ()))


def _check_args(node: TorchNode, kinds: dict[str, ArgumentRule], where: str) -> None:
    if set(node.args) != set(kinds):
        raise ArtifactError(
            f"{where}: {node.name} takes the arguments {sorted(kinds)}, got"
            f" {ascii(sorted(node.args))[:200]}."
        )
    for name, kind in kinds.items():
        if not kind.accepts(node.args[name]):
            value = ascii(node.args[name])[:80]
            raise ArtifactError(
                f"{where}: {node.name}.{name} must be {kind.expected}, got {value}."
            )


def _unknown(where: str, what: str, name: str, known: Iterable[str]) -> ArtifactError:
    return ArtifactError(
        f"{where}: no {what} is called {name!a}; known: {', '.join(known)}."
        " Pass model= to load the weights into your own module."
    )


def shrink(model: nn.Module, blocks: tuple[SlimBlock, ...]) -> None:
    """Cut a skeleton of full size to the counts of a file; which units are cut does not matter."""
    if not blocks:
        return
    groups = find_groups(model)
    wanted = [count for block in blocks for count in (block.heads, block.filters)]
    if len(wanted) != len(groups):
        raise ArtifactError(
            f"architecture.slim: has {len(blocks)} blocks, the model {len(groups) // 2}."
        )
    cuts = list(zip(groups, wanted, strict=True))
    for group, count in cuts:
        if count > group.count:
            raise ArtifactError(
                f"architecture.slim: {count} {group.kind} for {group.block_name}, which has"
                f" {group.count}."
            )
    with torch.no_grad():
        for group, count in cuts:
            cut_units(group, range(count))
