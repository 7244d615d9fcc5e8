# SPDX-License-Identifier: Apache-2.0
"""A search on a tiny encoder that another process may kill: `python search_drill.py OUT DATA`."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "search"))

from search_tools import tiny_encoder, tiny_tokenizer

import gossamer
from gossamer.search import Mask, forecast, rungs, trial

rungs.RUNGS = ((6, 2), (8, 1))
rungs._TOKEN_STEPS = 2
rungs._HOPELESS = 10.0
trial._TIMED_SECONDS = forecast._TIMED_SECONDS = 0.01

if __name__ == "__main__":
    out, data = Path(sys.argv[1]), Path(sys.argv[2])
    result = gossamer.shrink(
        tiny_encoder(),
        data,
        out,
        tokenizer=tiny_tokenizer(),
        # Out of reach: every idea is tried, and no decision depends on a time.
        max_ms=1e-9,
        max_loss=10.0,
        masks=(Mask("unstructured", 0.5), Mask("unstructured", 0.9)),
        rates=(5e-4,),
    )
    print(json.dumps([[point.name, point.quality, point.size] for point in result.points]))
