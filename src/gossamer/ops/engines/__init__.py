# SPDX-License-Identifier: Apache-2.0
"""Whole models, or large parts of them, as one native call.

One room per engine. Start with the class that is called: `decoder_session.NativeDecoder`
with a `NativeSession` for text, `decoder` for its parts, `encoder.PackedEncoder` for stacks of
encoder layers, `conv_net.PackedConvNet` for the body of a convolutional network. The other names of
those rooms describe what an engine is made of. `PackedNeurons`, for feed-forward blocks, needs no
description.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.ops.engines.neurons import PackedNeurons

__all__ = ["PackedNeurons"]

__getattr__, __dir__ = lazy_door(__name__, {"PackedNeurons": "neurons"})
