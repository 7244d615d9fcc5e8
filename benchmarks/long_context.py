# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M on a long text: time, bytes of keys and quality of zeros in its attention.

    GOSSAMER_DATA=DIR python benchmarks/long_context.py times|quality|facts [--length 8192]
        [--rules full/fp32,full/int8,...] [--peers DIR] [--windows 1] [--threads 1] [--json FILE]
    python benchmarks/long_context.py front --parts FILE.json ... --svg FILE.svg

A contender is rules of `--attention` and a type of `--kv`. Weights are the packaged 4-bit ones.

`times`: the text of `length` tokens less 1384, then 1000, then 384 tokens one by one; contenders
take turns token by token, and the perplexity of those tokens is that of the same run. CPU time with
one thread. llama.cpp, if it is there, reads as
many tokens of the same file (its own type of keys, fp16) and writes 24 behind them.
`quality`: perplexity of the last 512 tokens of windows of WikiText-2 valid behind what calibration
and other benchmarks saw, one by one, so that pages are chosen for each.
`facts`: a number of six digits at 10 depths of the first window, asked for at its end; how many of
the ten the likeliest tokens give back.
`front`: the picture of quality, time and bytes from the JSON of `times`.
"""

import json
import lzma
import math
import statistics
from pathlib import Path

import torch

from gossamer import settings
from gossamer.cli.models import demo_path, load_source
from gossamer.cli.shell import table
from gossamer.patterns.attention.key_rules import parse_key_rules
from gossamer.report.charts.plot import Plot
from gossamer.report.charts.shapes import Label
from gossamer.report.page import render_svg
from gossamer.running.decoder import DecoderEngine
from gossamer.running.text import TextTokens
from gossamer.search.long_texts import DEPTHS, ask_depths, read_on
from support.decoders import timed
from support.llamacpp import LlamaCpp
from support.options import give, machine, parser, progress

RULES = (
    "full/fp32,full/int8,full/int4,pages:1024/fp32,pages:1024/int8,"
    "mass:0.95/int8,mass:0.9/int8,mass:0.9+pages:1024/int8"
)
LAST, SCORED, NEW = 1000, 512, 384


def text_ids(tokenizer, length, windows):
    """Windows from the end of the file, which no other benchmark reads."""
    file = settings.data_dir() / "wikitext2" / "valid.txt.xz"
    text = lzma.decompress(file.read_bytes()).decode("utf-8")
    ids = tokenizer.encode(text[-8 * length * windows :]).ids[-length * windows :]
    return [ids[i * length : (i + 1) * length] for i in range(windows)]


def engines(model, rules, length):
    """Title -> an engine; they differ in keys alone and share their weights."""
    engine = DecoderEngine(model, "int4", context=length)
    return {
        title: engine.with_keys(parse_key_rules(*title.split("/"))) for title in rules.split(",")
    }


def times(made, ids, peers, threads):
    """Seconds of the prompt, of its last tokens and of one token behind it."""
    clock, sessions, rows = (1 if threads == 1 else 0), {}, {}
    for title, engine in made.items():
        session = sessions[title] = engine.session()
        head = timed(lambda s=session: s.prompt(ids[: -LAST - NEW]))[clock]
        logits = []
        last = timed(lambda s=session, to=logits: to.append(s.prompt(ids[:-NEW])))[clock]
        rows[title] = {
            "prefill": head + last, "last": last, "tokens": [], "bytes": engine.key_bytes,
            "logits": logits[0], "loss": 0.0,
        }  # fmt: skip
        progress(f"{title}: prefill {head + last:.1f} s, last {LAST} {last:.2f} s")
    for token in ids[-NEW:]:
        for title, session in sessions.items():
            row, logits = rows[title], []
            row["loss"] -= float(row["logits"].double().log_softmax(0)[token]) / NEW
            call = lambda s=session, t=token, to=logits: to.append(s.append(t))  # noqa: E731
            row["tokens"].append(timed(call)[clock])
            (row["logits"],) = logits
    for row in rows.values():
        row["perplexity"] = math.exp(row.pop("loss"))
        del row["logits"]
    with LlamaCpp.start(peers, None, threads) as peer:
        if peer is not None:
            peer.load(demo_path("smollm2"), context=len(ids))
            prompt, *tokens = (pair[clock] for pair in peer.read(len(ids) - NEW, 24))
            rows[peer.title] = {"prefill": prompt, "last": math.nan, "tokens": tokens}
    return rows


def front(files, target):
    """The picture: quality against time, area of a dot: bytes of keys; from JSON of `times`.

    Each file begins with all keys in fp32; growth is over those of the same file, and the mean.
    """
    found = {}
    for file in files:
        figures = json.loads(file.read_text())["figures"]
        full = figures["full/fp32"]["perplexity"]
        for title, row in figures.items():
            if "perplexity" in row:
                row["lost"] = row["perplexity"] / full - 1
                found.setdefault(title, []).append(row)
    rows = [
        (
            title,
            statistics.mean(row["lost"] for row in runs),
            1e3 * min(statistics.median(row["tokens"]) for row in runs),
            min(row["prefill"] for row in runs),
            runs[0]["bytes"],
        )
        for title, runs in found.items()
    ]
    plots = []
    for name, unit, place in (("a token behind the text", "ms", 2), ("the text", "s", 3)):
        plot = Plot(
            f"Growth of perplexity against time of {name}; area of a dot: bytes of keys",
            360.0,
            x=(0.0, 1.1 * max(row[place] for row in rows)),
            y=(min(0.0, *(row[1] for row in rows)) - 0.005, 1.2 * max(row[1] for row in rows)),
        )
        plot.axes((unit, ""), (lambda x: f"{x:g}", lambda y: f"{y:.0%}"))
        plot.line(((x, 0.01) for x in plot.x), "mark")
        for row in rows:
            side = 4 + 14 * math.sqrt(row[4] / max(r[4] for r in rows))
            text = f"{row[0]}: {row[place]:.2f} {unit}, {row[1]:+.2%}, {row[4] / 1e6:.0f} MB"
            plot.dot(row[place], row[1], "sparse" if row[0][:4] != "full" else "dense", text, side)
            x, y = plot.place(row[place], row[1])
            plot.labels.append(Label(x + side / 2 + 2, y - side / 2, row[0], "value"))
        plots.append(plot)
    for plot, name in zip(plots, ("token", "text"), strict=True):
        target.with_name(f"{target.stem}_{name}.svg").write_text(render_svg(plot))


def main():
    """Measure one of the three, or draw."""
    options = parser(__doc__)
    options.add_argument("what", choices=["times", "quality", "facts", "front"])
    options.add_argument("--length", type=int, default=8192)
    options.add_argument("--windows", type=int, default=1)
    options.add_argument("--window", type=int, default=0, help="which of them times reads")
    options.add_argument("--rules", default=RULES)
    options.add_argument("--parts", type=Path, nargs="+")
    options.add_argument("--svg", type=Path)
    arguments = options.parse_args()
    if arguments.what == "front":
        return front(arguments.parts, arguments.svg)
    torch.set_num_threads(arguments.threads)
    source = load_source("demo:smollm2")
    tokenizer = TextTokens(source.beside, source.model.config).tokenizer
    windows = text_ids(tokenizer, arguments.length, arguments.windows)
    made = engines(source.model, arguments.rules, arguments.length)
    rows, figures = [], {}
    if arguments.what == "times":
        figures = times(made, windows[arguments.window], arguments.peers, arguments.threads)
        first = next(iter(figures.values()))
        for title, row in figures.items():
            token, base = statistics.median(row["tokens"]), statistics.median(first["tokens"])
            ratios = [a / b for a, b in zip(first["tokens"], row["tokens"], strict=False)]
            rows.append(
                (title, f"{row['prefill']:.1f}", f"{first['prefill'] / row['prefill']:.2f}",
                 f"{row['last']:.2f}", f"{first['last'] / row['last']:.2f}",
                 f"{1e3 * token:.2f}", f"{base / token:.2f}",
                 f"{min(ratios):.2f} to {max(ratios):.2f}",
                 *((f"{row['perplexity']:.3f}", f"{row['bytes'] / 1e6:.0f}")
                   if "bytes" in row else ("-", "-")))
            )  # fmt: skip
        names = ("attention/keys", "prefill s", "x", f"last {LAST} s", "x", "token ms", "x",
                 "of single tokens", "perplexity", "MB")  # fmt: skip
    else:
        for title, engine in made.items():
            if arguments.what == "quality":
                figures[title] = read_on(engine, windows, SCORED).perplexity
                shown = f"{figures[title]:.3f}"
            else:
                figures[title] = ask_depths(engine, windows[0], tokenizer)
                shown = f"{figures[title]} of {DEPTHS}"
            progress(f"{title}: {shown}")
            rows.append((title, shown, f"{engine.key_bytes / 1e6:.0f}"))
        names = ("attention/keys", arguments.what, "MB")
    given = {"what": arguments.what, "length": arguments.length, "windows": arguments.windows}
    given |= {"machine": machine(), "figures": figures}
    give(arguments, given, table(*names, rows=rows))
    return None


if __name__ == "__main__":
    main()
