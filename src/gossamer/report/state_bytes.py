# SPDX-License-Identifier: Apache-2.0
"""How much memory training holds, measured by walking storages."""

import torch
from torch import nn


def training_state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, gradients, buffers and optimizer state; shared storage counts once."""
    tensors: list[torch.Tensor] = [*model.parameters(), *model.buffers()]
    tensors += [param.grad for param in model.parameters() if param.grad is not None]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
