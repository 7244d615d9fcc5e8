# SPDX-License-Identifier: Apache-2.0
"""A relufied SmolLM2: its feed-forward blocks on recorded inputs, tokens/s and perplexity.

    GOSSAMER_DATA=DIR python benchmarks/relufied_smollm.py MODEL [--part blocks|decode|quality]
        [--windows 8] [--rounds 4] [--seconds 4] [--json]

MODEL is what the recipe `relufy-decoder` made of demo:smollm2. `blocks`: one token through the
feed-forward blocks of all layers in turn, another recorded token of held-out text in every call, so
that nothing waits in a cache; one thread, CPU time, the median of the rounds. `decode`: whole
decoders in turns (support/decoders.py). `quality`: perplexity of the engines on windows of 512
tokens of WikiText-2 valid behind the part that training saw, and what windows of tokens leave
untouched.
"""

import itertools
import lzma
import math
import statistics
import time
from pathlib import Path

import torch

from gossamer import settings
from gossamer.cli.models import demo_path, load_source
from gossamer.cli.shell import table
from gossamer.io import load
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE, make_tokenizer
from gossamer.running.decoder import DecoderEngine
from gossamer.running.layers.neurons import pack_block
from gossamer.training.recovery.aggregated_sparsity import measure_aggregated_sparsity
from support.decoders import CONTEXT, Gossamer, race, rates
from support.options import give, machine, parser, progress


class Engine(Gossamer):
    """Ours, on active neurons where told."""

    def __init__(self, title, make, dtype, active):
        self.title = title
        self.engine = DecoderEngine(make(), dtype, context=CONTEXT, active_neurons=active)
        self.bytes_per_token = self.engine.size.bytes_per_token
        self.bits = self.engine.size.bits_per_weight
        self.resident = self.engine.size.resident_bytes
        self._session = self.engine.session()


def held_out(windows, tokens=512):
    """Token numbers [windows, tokens] behind the first 60 % of WikiText-2 valid."""
    packed = (settings.data_dir() / "wikitext2" / "valid.txt.xz").read_bytes()
    text = lzma.decompress(packed).decode()
    tokenizer = make_tokenizer(load_source("demo:smollm2").beside[TOKENIZER_FILE])
    ids = torch.tensor(tokenizer(text[int(len(text) * 0.6) :])["input_ids"])
    return ids[: windows * tokens].view(windows, tokens)


def blocks(given):
    """Median microseconds of one block, by contender, and the share of zeros."""
    model = load(given.model).eval()
    layers = [layer.mlp for layer in model.model.layers]
    inputs = [[] for _ in layers]
    for layer, seen in zip(layers, inputs, strict=True):
        layer.register_forward_pre_hook(lambda _, x, seen=seen: seen.append(x[0].flatten(0, -2)))
    with torch.inference_mode():
        model(held_out(1))
        rows = [torch.cat(seen)[64:] for seen in inputs]
        for layer in layers:
            layer._forward_pre_hooks.clear()
        packed = {
            r: [pack_block(layer, rows=r) for layer in layers] for r in ("fp32", "bf16", "int8")
        }
        known = [
            [(layer.act_fn(layer.gate_proj(x)) != 0).nonzero()[:, -1] for x in torch.split(r, 1)]
            for layer, r in zip(layers, rows, strict=True)
        ]
        share = statistics.mean(len(n) for of in known for n in of) / packed["fp32"][0].num_neurons
        calls = {
            "dense fp32": lambda i, t: layers[i](rows[i][t : t + 1]),
            "active fp32": lambda i, t: packed["fp32"][i](rows[i][t : t + 1]),
            "active bf16": lambda i, t: packed["bf16"][i](rows[i][t : t + 1]),
            "active int8": lambda i, t: packed["int8"][i](rows[i][t : t + 1]),
            "known fp32": lambda i, t: packed["fp32"][i](rows[i][t : t + 1], known[i][t]),
        }
        times = {name: [] for name in calls}
        tokens = itertools.cycle(range(len(rows[0])))
        end = time.monotonic() + (given.seconds or 4.0)
        while time.monotonic() < end:
            for name, call in calls.items():
                token = next(tokens)
                before = time.process_time()
                for number in range(len(layers)):
                    call(number, token)
                times[name].append(1e6 * (time.process_time() - before) / len(layers))
    return {"zeros": 1 - share, "us": {n: statistics.median(t) for n, t in times.items()}}


def contenders(given):
    """Dense int8, and the relufied model without and with active neurons."""
    return [
        Engine("dense int8", lambda: load(demo_path("smollm2")), "int8", False),
        Engine("relufied int8, whole layers", lambda: load(given.model), "int8", False),
        Engine("relufied int8, active neurons", lambda: load(given.model), "int8", True),
    ]


def main():
    made = parser(__doc__.splitlines()[0])
    made.add_argument("model", type=Path)
    made.add_argument("--part", choices=("blocks", "decode", "quality"), default="blocks")
    made.add_argument("--windows", type=int, default=8)
    made.add_argument("--rounds", type=int, default=4)
    given = made.parse_args()
    torch.set_num_threads(given.threads)
    document = {"machine": machine(), "part": given.part}
    if given.part == "blocks":
        found = blocks(given)
        shown = table("block of SmolLM2", ">us", ">over dense fp32")
        for name, us in found["us"].items():
            shown.add_row(name, f"{us:.0f}", f"{found['us']['dense fp32'] / us:.2f}x")
        give(given, document | found, shown, f"{found['zeros']:.1%} of the activations are zero.")
        return
    ours = contenders(given)
    if given.part == "decode":
        times, rate = race(ours, given.rounds, given.threads)
        shown = table("engine", ">prompt t/s", ">empty t/s", ">after 128 t/s", ">MB")
        for one in ours:
            best, middle = rates(times[one.title])
            document[one.title] = {"best": best, "median": middle}
            cells = (f"{best[k]:.0f} ({middle[k]:.0f})" for k in ("prompt", "empty", "after"))
            shown.add_row(one.title, *cells, f"{one.resident / 1e6:.0f}")
        give(given, document, shown, f"Reading memory: {rate:.1f} GB/s. Best (median).")
        return
    ids = held_out(given.windows)
    shown = table("engine", ">perplexity")
    for one in ours[:2]:
        document[one.title] = math.exp(one.likelihood(ids) / (ids.numel() - len(ids)))
        progress(f"{one.title}: {document[one.title]:.2f}")
        shown.add_row(one.title, f"{document[one.title]:.2f}")
    rows = measure_aggregated_sparsity(load(given.model), ids[:2, None], lambda m, x: m(x))
    for row in rows:
        gain = row.speculation(0.1)
        text = f"{row.untouched:.1%} (by chance {row.by_chance:.1%}), {gain:.2f}x of speculation"
        shown.add_row(f"untouched by {row.window} tokens in a row", text)
    give(given, document | {"windows": [vars(row) for row in rows]}, shown)


if __name__ == "__main__":
    main()
