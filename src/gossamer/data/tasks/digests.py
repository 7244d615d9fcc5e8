# SPDX-License-Identifier: Apache-2.0
"""What data a run was trained on, as a hash that its checkpoints carry."""

import hashlib

import torch


def tensors_digest(*tensors: torch.Tensor) -> str:
    """sha256 of dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
