# SPDX-License-Identifier: Apache-2.0
"""The package tokenizers, whose failures (panics included) become errors of ours.

Start at `make_tokenizer`, which takes the bytes of a tokenizer.json.
"""

from gossamer.io.safe_files.tokenizer.guarded_tokenizer import (
    TOKENIZER_FILE,
    GuardedTokenizer,
    guarded,
    known_tokens,
    make_tokenizer,
)

__all__ = ["TOKENIZER_FILE", "GuardedTokenizer", "guarded", "known_tokens", "make_tokenizer"]
