# SPDX-License-Identifier: Apache-2.0
"""Artifacts on disk, and the files of other tools: Hugging Face directories, gguf, ONNX.

No pickle, no code from data: architectures, formats and patterns come from closed tables, and
every byte is checked before it is used. Start at `save` and `load`, which reads any of them; what
each room behind this door is for stands in README.md.
"""

from gossamer.io.artifact import open_artifact, save, save_compressed_tensors
from gossamer.io.gguf import load_gguf
from gossamer.io.huggingface import load_pretrained
from gossamer.io.loading import load, load_skeleton, load_telling, read_beside
from gossamer.io.onnx import load_onnx
from gossamer.io.pruners import adopt_pruned, adopt_zeros, read_dense_checkpoint

__all__ = [
    "adopt_pruned",
    "adopt_zeros",
    "load",
    "load_gguf",
    "load_onnx",
    "load_pretrained",
    "load_skeleton",
    "load_telling",
    "open_artifact",
    "read_beside",
    "read_dense_checkpoint",
    "save",
    "save_compressed_tensors",
]
