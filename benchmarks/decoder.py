# SPDX-License-Identifier: Apache-2.0
"""Generation with SmolLM2-135M: gossamer, llama.cpp and transformers in turns.

    python benchmarks/decoder.py [--model DIR] [--threads 1] [--rounds 8] [--quality] [--json]

--model is a pruned SmolLM2 (gossamer prune demo:smollm2 --recipe sparsegpt-50 ...); without it the
packaged model is pruned by magnitude, which is as fast and not as good. All contenders make one
turn in every round: a prompt of 128 tokens, 8 tokens on an empty context, 8 after 128. With one
thread the figure is CPU time, minimum over all turns, which other work on the machine disturbs
least; with two it is wall time. llama.cpp runs where `peers/setup.sh llamacpp DIR` was run.
"""

import gc
import json
import lzma
import math
import os
import statistics
import time
from pathlib import Path

import psutil
import torch

import gossamer
from gossamer.cli.demo_models import demo_path
from gossamer.cli.output import table
from gossamer.io import load, read_beside
from gossamer.io.samples import TOKENIZER_FILE, Texts, make_tokenizer, windows
from gossamer.run.decoder import DecoderEngine
from support.llamacpp import LlamaCpp
from support.options import give, machine, parser

CONTEXT, PROMPT, NEW, TOKEN = 1024, 128, 8, 500
GOALS = {"generation": 1.5, "prompt": 600}


def clocks():
    return time.perf_counter(), time.process_time()


def timed(call):
    wall, cpu = clocks()
    call()
    after = clocks()
    return after[0] - wall, after[1] - cpu


class Gossamer:
    """Ours: a packed engine and one session."""

    def __init__(self, title, model, dtype, head=None):
        before = psutil.Process().memory_info().rss
        self.title = title
        self.engine = DecoderEngine(model, dtype, head_dtype=head, context=CONTEXT)
        self.resident = psutil.Process().memory_info().rss - before
        self.bytes_per_token = self.engine.size.bytes_per_token
        self.bits = self.engine.size.bits_per_weight
        self._session = self.engine.session()

    def prompt(self):
        """(wall, cpu) of the prompt."""
        self._session.prompt([TOKEN + 1])
        return [timed(lambda: self._session.prompt([TOKEN] * PROMPT))]

    def generate(self, after):
        """(wall, cpu) of every new token."""
        self._session.prompt([TOKEN + 1])
        self._session.prompt([TOKEN] * max(after, 1))
        return [timed(lambda: self._session.append(TOKEN)) for _ in range(NEW)]


class Transformers:
    """The dense model in torch, with its own cache."""

    def __init__(self, title, model, dtype):
        self.title = title
        self._model = model.to(dtype)
        self.bytes_per_token = sum(p.numel() * p.element_size() for p in model.parameters())
        self.resident, self.bits = self.bytes_per_token, 8.0 * dtype.itemsize

    def _forward(self, count, cache=None):
        ids = torch.full((1, count), TOKEN)
        return self._model(
            ids, past_key_values=cache, use_cache=True, logits_to_keep=1
        ).past_key_values

    def prompt(self):
        """(wall, cpu) of the prompt."""
        with torch.inference_mode():
            return [timed(lambda: self._forward(PROMPT))]

    def generate(self, after):
        """(wall, cpu) of every new token."""
        with torch.inference_mode():
            cache = self._forward(max(after, 1))
            return [timed(lambda: self._forward(1, cache)) for _ in range(NEW)]


def race(contenders, rounds, threads):
    """Seconds per token of every contender: {title: {what: [per turn]}}."""
    times = {one.title: {"prompt": [], "empty": [], "after": []} for one in contenders}
    clock = 1 if threads == 1 else 0
    for number in range(rounds + 1):
        for one in contenders:
            turn = {"prompt": one.prompt(), "empty": one.generate(0), "after": one.generate(PROMPT)}
            if number == 0:
                continue  # warms up
            for what, pairs in turn.items():
                share = PROMPT if what == "prompt" else 1
                times[one.title][what].append(min(pair[clock] for pair in pairs) / share)
    return times


def perplexity(logits_of, ids_NT):
    total = count = 0
    for ids_T in ids_NT:
        logits = logits_of(ids_T)[:-1].float()
        total += float(torch.nn.functional.cross_entropy(logits, ids_T[1:], reduction="sum"))
        count += len(ids_T) - 1
    return math.exp(total / count)


def quality(model, engines, num_windows):
    """Perplexity on the first windows of 512 tokens of WikiText-2 valid."""
    path = Path(os.environ["GOSSAMER_DATA"]) / "wikitext2" / "valid.txt.xz"
    tokenizer = make_tokenizer(read_beside(demo_path("smollm2"))[TOKENIZER_FILE])
    text = Texts(path, lzma.decompress(path.read_bytes()).decode("utf-8"))
    ids_NT = windows(text, tokenizer, 512)[:num_windows]
    with torch.inference_mode():
        rows = {"fp32, the pruned model": perplexity(lambda t: model(t[None]).logits[0], ids_NT)}
        for engine in engines:
            rows[engine.title] = perplexity(engine.engine.logits, ids_NT)
    return rows


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--model", type=Path)
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--quality", type=int, default=0, metavar="WINDOWS")
    options.add_argument("--transformers", action="store_true")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    dense = load(demo_path("smollm2"))
    if given.model is None:
        model = load(demo_path("smollm2"))
        gossamer.sparsify(model, sparsity=0.5, ignore=["lm_head"])
    else:
        model = load(given.model)
    contenders = [
        Gossamer("gossamer 50 % int4, head int8", model, "int4"),
        Gossamer("gossamer 50 % int8", model, "int8"),
        Gossamer("gossamer dense int4, head int8", dense, "int4"),
    ]
    rows = quality(model, contenders, given.quality) if given.quality else {}
    del model
    if given.transformers:
        contenders.append(Transformers("transformers bf16", dense, torch.bfloat16))
    gc.collect()
    with LlamaCpp.start(given.peers, demo_path("smollm2"), given.threads) as peer:
        if peer is not None:
            contenders.append(peer)
        times = race(contenders, given.rounds, given.threads)
    report(given, contenders, times, rows)


def report(given, contenders, times, rows):
    shown = table("engine", ">prompt t/s", ">empty t/s", ">after 128 t/s", ">GB/s", ">bits/weight",
                  ">MB/token", ">resident MB", ">x llama.cpp")  # fmt: skip
    rival = next((o.title for o in contenders if isinstance(o, LlamaCpp)), None)
    document = {"machine": machine(), "threads": given.threads}
    document["engines"], document["perplexity"] = {}, rows
    for one in contenders:
        best = {what: 1 / min(seconds) for what, seconds in times[one.title].items()}
        middle = {what: 1 / statistics.median(sec) for what, sec in times[one.title].items()}
        ratio = best["empty"] * min(times[rival]["empty"]) if rival else math.nan
        rate = one.bytes_per_token * best["empty"] / 1e9
        document["engines"][one.title] = {
            "best": best, "median": middle, "gb_per_second": rate, "bits_per_weight": one.bits,
            "bytes_per_token": one.bytes_per_token, "resident_bytes": one.resident,
            "generation_over_llamacpp": ratio,
        }  # fmt: skip
        shown.add_row(
            one.title,
            *(f"{best[what]:.0f} ({middle[what]:.0f})" for what in ("prompt", "empty", "after")),
            f"{rate:.1f}", f"{one.bits:.2f}", f"{one.bytes_per_token / 1e6:.1f}",
            f"{one.resident / 1e6:.0f}", f"{ratio:.2f}",
        )  # fmt: skip
    qualities = table("WikiText-2 valid", ">perplexity")
    for title, value in rows.items():
        qualities.add_row(title, f"{value:.2f}")
    give(given, document, shown, qualities, f"Goals: {json.dumps(GOALS)}; best (median).")


if __name__ == "__main__":
    main()
