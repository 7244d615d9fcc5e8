# SPDX-License-Identifier: Apache-2.0
"""Files of llama.cpp: models as transformers models, their tokenizers, and the way back.

`header.py` checks everything a file says before a byte of its tensors is read; `settings.py` makes
a configuration of what it says, by the rows of families; `file.py` makes a model, and
`tokenizer.py` the files of its tokenizer. `writing.py` writes a file: `written_settings.py` and
`written_tokenizer.py` say what it says, `blocks.py` how each weight is stored.
"""

from gossamer.io.gguf.blocks import GGUF_TYPES
from gossamer.io.gguf.file import is_gguf, load_gguf, stream_gguf
from gossamer.io.gguf.tokenizer import gguf_tokenizer_files
from gossamer.io.gguf.writing import Written, write_gguf

__all__ = [
    "GGUF_TYPES",
    "Written",
    "gguf_tokenizer_files",
    "is_gguf",
    "load_gguf",
    "stream_gguf",
    "write_gguf",
]
