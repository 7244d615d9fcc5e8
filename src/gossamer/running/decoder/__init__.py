# SPDX-License-Identifier: Apache-2.0
"""Text generation: token numbers in, token numbers out.

`make_generator` is the one place where an engine is chosen: the native decoder (`engine.py`) for
families that have a row for it, transformers with compiled layers for all others. What runs an
engine (`session.py`, `generation.py`) is free of torch, so that a stored one starts at once.
Whoever writes text uses `gossamer.running.text`, which adds the tokenizer.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.running.decoder.choosing import make_generator
    from gossamer.running.decoder.engine import DecoderEngine
    from gossamer.running.decoder.generation import (
        GenerationOptions,
        NativeGenerator,
        TokenGenerator,
    )
    from gossamer.running.decoder.sampling import Sampling
    from gossamer.running.decoder.stored import StoredDecoder, store_decoder

__all__ = [
    "DecoderEngine",
    "GenerationOptions",
    "NativeGenerator",
    "Sampling",
    "StoredDecoder",
    "TokenGenerator",
    "make_generator",
    "store_decoder",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "DecoderEngine": "engine",
        "GenerationOptions": "generation",
        "NativeGenerator": "generation",
        "Sampling": "sampling",
        "StoredDecoder": "stored",
        "TokenGenerator": "generation",
        "make_generator": "choosing",
        "store_decoder": "stored",
    },
)
