# SPDX-License-Identifier: Apache-2.0
"""Artifacts on disk, and the files of other tools: Hugging Face directories, gguf, ONNX.

No pickle, no code from data: architectures, formats and patterns come from closed tables, and
every byte is checked before it is used.
"""

from gossamer.io.artifact.compressed_tensors_writer import save_compressed_tensors
from gossamer.io.artifact.manifest import Manifest
from gossamer.io.artifact.opened import open_artifact
from gossamer.io.artifact.writer import save
from gossamer.io.gguf.file import load_gguf
from gossamer.io.huggingface.directory import load_pretrained
from gossamer.io.loading import load, read_beside
from gossamer.io.onnx.importer import load_onnx
from gossamer.io.pruners.dense_checkpoint import (
    AdoptedLayer,
    DenseCheckpoint,
    DetectedMask,
    adopt_zeros,
    read_dense_checkpoint,
)
from gossamer.io.pruners.pruned_layers import adopt_pruned

__all__ = [
    "AdoptedLayer",
    "DenseCheckpoint",
    "DetectedMask",
    "Manifest",
    "adopt_pruned",
    "adopt_zeros",
    "load",
    "load_gguf",
    "load_onnx",
    "load_pretrained",
    "open_artifact",
    "read_beside",
    "read_dense_checkpoint",
    "save",
    "save_compressed_tensors",
]
