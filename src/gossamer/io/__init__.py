# SPDX-License-Identifier: Apache-2.0
"""Artifacts on disk, and the files of other tools: Hugging Face directories, gguf, ONNX.

No pickle, no code from data: architectures, formats and patterns come from closed tables, and
every byte is checked before it is used.
"""

from gossamer.io.beside import read_beside
from gossamer.io.compressed_tensors_writer import save_compressed_tensors
from gossamer.io.dense_checkpoint import (
    AdoptedLayer,
    DenseCheckpoint,
    DetectedMask,
    adopt_zeros,
    read_dense_checkpoint,
)
from gossamer.io.gguf_file import load_gguf
from gossamer.io.huggingface import load_pretrained
from gossamer.io.manifest import Manifest
from gossamer.io.onnx_import import load_onnx
from gossamer.io.opened import open_artifact
from gossamer.io.pruned_layers import adopt_pruned
from gossamer.io.reader import load
from gossamer.io.writer import save

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
