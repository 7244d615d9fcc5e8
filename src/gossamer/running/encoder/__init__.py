# SPDX-License-Identifier: Apache-2.0
"""Encoders of known families, run as a whole.

`native_encoder.py` puts a `NativeEncoder` in the place of an encoder, or of its list of layers,
which then run in one native call; `gossamer.compile` asks for it (`find_encoders`, `pack_encoder`,
`choose_encoder`, `shorten_forward`). `run_packed` runs an encoder without padding and with tokens
dropped. `encoder_arrays` gives an encoder as plain arrays to other engines. Start with `layers.py`,
which reads the layers of a model and says what stands in the way.
"""

from gossamer.running.encoder.layers import find_encoders, read_layers
from gossamer.running.encoder.native_encoder import NativeEncoder, choose_encoder
from gossamer.running.encoder.packing import pack_encoder
from gossamer.running.encoder.ragged import run_packed
from gossamer.running.encoder.short_forward import shorten_forward

__all__ = [
    "NativeEncoder",
    "choose_encoder",
    "find_encoders",
    "pack_encoder",
    "read_layers",
    "run_packed",
    "shorten_forward",
]
