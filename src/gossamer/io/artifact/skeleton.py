# SPDX-License-Identifier: Apache-2.0
"""Builds described torch.nn and zoo models on the meta device, within a budget of tensors."""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError
from gossamer.io.artifact.layer_table import CONTAINERS, ENCODER, ENCODER_ARGS, LAYERS, ArgumentRule
from gossamer.io.artifact.manifest import PartNode, SlimBlock, TorchNode, ZooNode
from gossamer.nn.surgery.slimming import cut_units, find_groups
from gossamer.zoo import ZOO

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
            model = self._counted(lambda: ZOO[node.name](**node.args), where)  # type: ignore[arg-type]
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
