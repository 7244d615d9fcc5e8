# SPDX-License-Identifier: Apache-2.0
"""Whole models, or large parts of them, as one native call.

Start with the class that is called: `NativeDecoder` with a `NativeSession` for text,
`PackedEncoder` for stacks of encoder layers, `PackedConvNet` for the body of a convolutional
network, `PackedNeurons` for feed-forward blocks. The other names describe what they are made of.
"""

from gossamer.ops.engines.conv_net import (
    ConvStep,
    NetPlan,
    NetValue,
    PackedConvNet,
    PoolStep,
    positions_of,
)
from gossamer.ops.engines.decoder import (
    DecoderBlock,
    DecoderShape,
    NativeDecoder,
    NativeSession,
    PackedLayer,
)
from gossamer.ops.engines.encoder import EncoderBlock, Norm, PackedEncoder, Product
from gossamer.ops.engines.neurons import PackedNeurons

__all__ = [
    "ConvStep",
    "DecoderBlock",
    "DecoderShape",
    "EncoderBlock",
    "NativeDecoder",
    "NativeSession",
    "NetPlan",
    "NetValue",
    "Norm",
    "PackedConvNet",
    "PackedEncoder",
    "PackedLayer",
    "PackedNeurons",
    "PoolStep",
    "Product",
    "positions_of",
]
