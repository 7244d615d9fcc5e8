# SPDX-License-Identifier: Apache-2.0
"""Artifacts on disk, ordinary safetensors checkpoints and Hugging Face directories.

No pickle, no code from data: architectures, formats and patterns come from closed tables, and
every byte is checked before it is used.
"""

from gossamer.io.dense_checkpoint import (
    AdoptedLayer,
    DenseCheckpoint,
    DetectedMask,
    adopt_zeros,
    read_dense_checkpoint,
)
from gossamer.io.huggingface import load_pretrained
from gossamer.io.manifest import Manifest
from gossamer.io.opened import open_artifact
from gossamer.io.reader import load
from gossamer.io.writer import save

__all__ = [
    "AdoptedLayer",
    "DenseCheckpoint",
    "DetectedMask",
    "Manifest",
    "adopt_zeros",
    "load",
    "load_pretrained",
    "open_artifact",
    "read_dense_checkpoint",
    "save",
]
