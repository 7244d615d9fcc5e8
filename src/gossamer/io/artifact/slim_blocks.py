# SPDX-License-Identifier: Apache-2.0
"""Slim models in files: unit counts per block, from which the skeleton is cut to size."""

import torch
from torch import nn

from gossamer.errors import ArtifactError, TargetError
from gossamer.io.artifact.manifest import SlimBlock
from gossamer.nn.slimming import cut_units, find_groups, unit_counts


def slim_blocks(model: nn.Module, full: nn.Module) -> tuple[SlimBlock, ...]:
    """Unit counts of `model`; none if they are those of `full`, or if its blocks are unknown."""
    try:
        found, expected = unit_counts(model), unit_counts(full)
    except TargetError:
        # Masked or compact layers: nothing has been cut out of such a model.
        return ()
    if found == expected or len(found) != len(expected):
        return ()
    return tuple(SlimBlock(heads=heads, filters=filters) for heads, filters in found)


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
    for group, count in zip(groups, wanted, strict=True):
        if count > group.count:
            raise ArtifactError(
                f"architecture.slim: {count} {group.kind} for {group.block_name}, which has"
                f" {group.count}."
            )
    with torch.no_grad():
        for group, count in zip(groups, wanted, strict=True):
            cut_units(group, range(count))
