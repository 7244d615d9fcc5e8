# SPDX-License-Identifier: Apache-2.0
"""Files of llama.cpp: models of the Llama family as transformers models, and their tokenizers.

`file.py` makes a model of a file; `header.py` checks everything a file says before a byte of its
tensors is read.
"""

from gossamer.io.gguf.file import gguf_tokenizer_files, is_gguf, load_gguf

__all__ = ["gguf_tokenizer_files", "is_gguf", "load_gguf"]
