# SPDX-License-Identifier: Apache-2.0
"""Text generation: token numbers in, token numbers out.

`make_generator` is the one place where an engine is chosen: the native decoder (`engine.py`) for
families that have a row for it, transformers with compiled layers for all others. Whoever writes
text uses `gossamer.running.text`, which adds the tokenizer.
"""

from gossamer.running.decoder.engine import DecoderEngine
from gossamer.running.decoder.generation import (
    GenerationOptions,
    NativeGenerator,
    TokenGenerator,
    make_generator,
)
from gossamer.running.decoder.key_memory import KeySizes, key_memory
from gossamer.running.decoder.sampling import Sampling

__all__ = [
    "DecoderEngine",
    "GenerationOptions",
    "KeySizes",
    "NativeGenerator",
    "Sampling",
    "TokenGenerator",
    "key_memory",
    "make_generator",
]
