# SPDX-License-Identifier: Apache-2.0
"""Models that read and write text: tokenizers, chat templates, vectors, labels and new text.

`Embedder` gives vectors, `Classifier` labels, `make_writer` new text; start there. `TextTokens` is
the tokenizer of all three: special tokens that a text spells stay text (`special_tokens.py`). A
chat template is a program from a file and runs in a process of its own (`template_process.py`).
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.io.huggingface.sentences import Pooling
    from gossamer.running.text.embedding import Classifier, Embedder, pool
    from gossamer.running.text.special_tokens import TextTokens
    from gossamer.running.text.writer import TextPieces, Writer, make_writer

__all__ = [
    "Classifier",
    "Embedder",
    "Pooling",
    "TextPieces",
    "TextTokens",
    "Writer",
    "make_writer",
    "pool",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "Classifier": "embedding",
        "Embedder": "embedding",
        "Pooling": "embedding",
        "TextPieces": "writer",
        "TextTokens": "special_tokens",
        "Writer": "writer",
        "make_writer": "writer",
        "pool": "embedding",
    },
)
