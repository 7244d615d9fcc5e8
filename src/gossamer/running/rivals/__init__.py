# SPDX-License-Identifier: Apache-2.0
"""Other engines (ONNX Runtime, OpenVINO, DeepSparse), each in a process and environment of its own.

Start at `find_engine`, then enter an `EncoderEngine` or a `NetworkEngine`: it compiles models under
names, computes with them and times them in turns. What runs on the other side is in
`engine_scripts/`, one file per engine.
"""

from gossamer.running.rivals.engines import (
    NETWORK_PRECISIONS,
    PRECISIONS,
    TITLES,
    EncoderEngine,
    EngineFailed,
    NetworkEngine,
    export_network,
    find_engine,
)

__all__ = [
    "NETWORK_PRECISIONS",
    "PRECISIONS",
    "TITLES",
    "EncoderEngine",
    "EngineFailed",
    "NetworkEngine",
    "export_network",
    "find_engine",
]
