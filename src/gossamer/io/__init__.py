# SPDX-License-Identifier: Apache-2.0
"""Artifacts on disk, and the files of other tools: Hugging Face directories, gguf, ONNX.

No pickle, no code from data: architectures, formats and patterns come from closed tables, and every
byte is checked before it is used. Start at `save` and `load`, which reads any of them; the other
`load_...` read one kind and take its options. `read_beside` gives the tokenizer and what else lies
there. `adopt_zeros` and `adopt_pruned` take over what another pruner did to a model in memory.

Behind this door are `artifact`, `loading`, `huggingface`, `gguf`, `onnx`, `pruners` (what other
pruners write) and `safe_files` (how any file is read and written); see README.md.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.io.artifact import save
    from gossamer.io.gguf import load_gguf
    from gossamer.io.huggingface import load_pretrained
    from gossamer.io.loading import load, read_beside
    from gossamer.io.onnx import load_onnx
    from gossamer.io.pruners import adopt_pruned, adopt_zeros

__all__ = [
    "adopt_pruned",
    "adopt_zeros",
    "load",
    "load_gguf",
    "load_onnx",
    "load_pretrained",
    "read_beside",
    "save",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "adopt_pruned": "pruners",
        "adopt_zeros": "pruners",
        "load": "loading",
        "load_gguf": "gguf",
        "load_onnx": "onnx",
        "load_pretrained": "huggingface",
        "read_beside": "loading",
        "save": "artifact",
    },
)
