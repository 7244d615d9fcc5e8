# SPDX-License-Identifier: Apache-2.0
"""What `gossamer bench` measures: one linear layer, or a whole encoder against other engines.

Start at `bench_linear` for a layer (`ceilings` says what its instruction mix could reach at best)
and at `race_encoders` for encoders: every contender is a `RaceEntry`, checked against fp32 results
before it may start.
"""

from gossamer.running.bench.encoder import (
    EncoderTime,
    RaceEntry,
    dense_copy,
    model_run,
    race_encoders,
)
from gossamer.running.bench.linear import BenchRow, bench_linear, ceilings

__all__ = [
    "BenchRow",
    "EncoderTime",
    "RaceEntry",
    "bench_linear",
    "ceilings",
    "dense_copy",
    "model_run",
    "race_encoders",
]
