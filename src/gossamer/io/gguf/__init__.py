# SPDX-License-Identifier: Apache-2.0
"""Files of llama.cpp: models as transformers models, and their tokenizers.

`header.py` checks everything a file says before a byte of its tensors is read; `settings.py` makes
a configuration of what it says, by the rows of families; `file.py` makes a model, and
`tokenizer.py` the files of its tokenizer.
"""

from gossamer.io.gguf.file import is_gguf, load_gguf
from gossamer.io.gguf.tokenizer import gguf_tokenizer_files

__all__ = ["gguf_tokenizer_files", "is_gguf", "load_gguf"]
