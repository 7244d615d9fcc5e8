# SPDX-License-Identifier: Apache-2.0
"""Generation with SmolLM2-135M: gossamer, llama.cpp and transformers in turns.

    python benchmarks/decoder.py [--model DIR] [--threads 1] [--rounds 8] [--json]
    python benchmarks/decoder.py --large int4 int8 [--threads 1]

--model is a pruned SmolLM2 (gossamer prune demo:smollm2 --recipe sparsegpt-50 ...); without it the
packaged model is pruned by magnitude, which is as fast and not as good (for quality see
shrink_smollm.py). llama.cpp runs where `peers/setup.sh llamacpp DIR` was run. --large is a Llama of
1.1 billion random weights, alone. See support/decoders.py for what
is timed; --wait stands before the race until Enter is pressed.
"""

import json
import math
from pathlib import Path

import torch

import gossamer
from gossamer.cli.models import demo_path
from gossamer.cli.shell import table
from gossamer.io import load
from support.decoders import Gossamer, Transformers, race, rates
from support.large_llama import large_contender
from support.llamacpp import LlamaCpp
from support.options import give, machine, parser, progress

GOALS = {"generation over llama.cpp": 1.5, "prompt tokens/s": 600}


def smollm2(given):
    """Ours and, where wanted, the dense model in torch."""

    def pruned():
        if given.model is not None:
            return load(given.model)
        model = load(demo_path("smollm2"))
        gossamer.sparsify(model, sparsity=0.5, ignore=["lm_head"])
        return model

    def dense():
        return load(demo_path("smollm2"))

    contenders = [
        Gossamer("gossamer 50 % int4, head int8", pruned, "int4"),
        Gossamer("gossamer 50 % int8", pruned, "int8"),
        Gossamer("gossamer dense int4, head int8", dense, "int4"),
    ]
    if given.transformers:
        contenders.append(Transformers("transformers bf16", dense(), torch.bfloat16))
    return contenders


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--model", type=Path)
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--transformers", action="store_true")
    options.add_argument("--large", nargs="+", choices=("int4", "int8"), metavar="DTYPE")
    options.add_argument("--wait", action="store_true")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    if given.large:
        contenders = [large_contender(dtype) for dtype in given.large]
        times, rate = raced(given, contenders)
    else:
        contenders = smollm2(given)
        with LlamaCpp.start(given.peers, demo_path("smollm2"), given.threads) as peer:
            contenders += [peer] if peer is not None else []
            times, rate = raced(given, contenders)
    report(given, contenders, times, rate)


def raced(given, contenders):
    """The race, after the machine was made quiet where that is asked for."""
    if given.wait:
        progress("ready to race; press Enter")
        input()
    return race(contenders, given.rounds, given.threads)


def report(given, contenders, times, read_rate):
    shown = table("engine", ">prompt t/s", ">empty t/s", ">after 128 t/s", ">GB/s", ">bits/weight",
                  ">MB/token", ">resident MB", ">pack s", ">x llama.cpp")  # fmt: skip
    rival = next((o.title for o in contenders if isinstance(o, LlamaCpp)), None)
    document = {"machine": machine(), "threads": given.threads, "read_gb_per_second": read_rate}
    document["engines"] = {}
    for one in contenders:
        best, middle = rates(times[one.title])
        ratio = best["empty"] * min(times[rival]["empty"]) if rival else math.nan
        rate = one.bytes_per_token * best["empty"] / 1e9
        seconds = getattr(one, "load_seconds", math.nan)
        document["engines"][one.title] = {
            "best": best, "median": middle, "gb_per_second": rate, "bits_per_weight": one.bits,
            "bytes_per_token": one.bytes_per_token, "resident_bytes": one.resident,
            "generation_over_llamacpp": ratio, "load_seconds": seconds,
        }  # fmt: skip
        shown.add_row(
            one.title,
            *(f"{best[what]:.0f} ({middle[what]:.0f})" for what in ("prompt", "empty", "after")),
            f"{rate:.1f}", f"{one.bits:.2f}", f"{one.bytes_per_token / 1e6:.1f}",
            f"{one.resident / 1e6:.0f}", f"{seconds:.1f}", f"{ratio:.2f}",
        )  # fmt: skip
    note = f"Reading memory: {read_rate:.1f} GB/s. Goals: {json.dumps(GOALS)}; best (median)."
    give(given, document, shown, note)


if __name__ == "__main__":
    main()
