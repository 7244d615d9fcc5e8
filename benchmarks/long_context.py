# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M on a long text: time, bytes of keys and perplexity of zeros in its attention.

    GOSSAMER_DATA=DIR python benchmarks/long_context.py times|quality|facts [--length 8192]
        [--rules full/fp32,full/int8,...] [--peers DIR] [--windows 1] [--threads 1] [--json]

A contender is rules of `--attention` and a type of `--kv`. Weights are the packaged 4-bit ones.

`times`: the text of `length` tokens less 1000, then those 1000, then tokens one by one; contenders
take turns token by token. CPU time with one thread. llama.cpp, if it is there, reads as many tokens
of the same file (its own type of keys, fp16).
`quality`: perplexity of the last 512 tokens of windows of WikiText-2 valid behind what calibration
and other benchmarks saw, one by one, so that pages are chosen for each.
`facts`: a number of six digits at 10 depths of such a window, asked for at its end; how many of the
ten the likeliest tokens give back.
"""

import lzma
import math
import random
import statistics

import torch

from gossamer import settings
from gossamer.cli.models import demo_path, load_source
from gossamer.cli.shell import table
from gossamer.patterns.attention.key_rules import parse_key_rules
from gossamer.running.decoder import DecoderEngine
from gossamer.running.text import TextTokens
from support.decoders import timed
from support.llamacpp import LlamaCpp
from support.options import give, machine, parser, progress

RULES = "full/fp32,full/int8,pages:1024/fp32,pages:1024/int8,mass:0.9/fp32,mass:0.9/int8"
LAST, SCORED, NEW = 1000, 512, 24
DEPTHS = 10


def text_ids(tokenizer, length, windows):
    """Windows from the end of the file, which no other benchmark reads."""
    file = settings.data_dir() / "wikitext2" / "valid.txt.xz"
    text = lzma.decompress(file.read_bytes()).decode("utf-8")
    ids = tokenizer.encode(text[-8 * length * windows :]).ids[-length * windows :]
    return [ids[i * length : (i + 1) * length] for i in range(windows)]


def engines(model, rules, length):
    """Title -> an engine; they differ in keys alone."""
    made = {}
    for title in rules.split(","):
        text, _, dtype = title.partition("/")
        keys = parse_key_rules(text, dtype)
        made[title] = DecoderEngine(model, "int4", context=length, keys=keys)
    return made


def times(made, ids, peers, threads):
    """Seconds of the prompt, of its last tokens and of one token behind it."""
    clock, sessions, rows = (1 if threads == 1 else 0), {}, {}
    for title, engine in made.items():
        session = sessions[title] = engine.session()
        head = timed(lambda s=session: s.prompt(ids[: -LAST - NEW]))[clock]
        last = timed(lambda s=session: s.prompt(ids[:-NEW]))[clock]
        rows[title] = {"prefill": head + last, "last": last, "tokens": []}
        progress(f"{title}: prefill {head + last:.1f} s, last {LAST} {last:.2f} s")
    for token in ids[-NEW:]:
        for title, session in sessions.items():
            rows[title]["tokens"].append(timed(lambda s=session, t=token: s.append(t))[clock])
    with LlamaCpp.start(peers, None, threads) as peer:
        if peer is not None:
            peer.load(demo_path("smollm2"), context=len(ids))
            (prompt,) = peer.read(len(ids) - NEW)
            rows[peer.title] = {"prefill": prompt[clock], "last": math.nan, "tokens": [math.nan]}
    return rows


def perplexity(engine, windows):
    """Of the last tokens of every window, one by one."""
    total = count = 0.0
    for ids in windows:
        session = engine.session()
        logits_V = session.prompt(ids[:-SCORED])
        for token in ids[-SCORED:]:
            total -= float(logits_V.double().log_softmax(0)[token])
            count += 1
            logits_V = session.append(token)
    return math.exp(total / count)


def found(engine, ids, tokenizer):
    """At how many depths a number is given back."""
    draw, right = random.Random(7), 0  # noqa: S311  (no secret)
    ask = tokenizer.encode(" The secret number that was hidden in this text is").ids
    for depth in range(DEPTHS):
        number = str(draw.randrange(100000, 1000000))
        fact = tokenizer.encode(f" Remember: the secret number is {number}. ").ids
        body = ids[: len(ids) - len(ask) - len(fact) - 16]
        at = depth * len(body) // DEPTHS
        prompt = [*body[:at], *fact, *body[at:], *ask]
        right += number in tokenizer.decode(engine.generate(prompt, 12))
    return right


def main():
    """Measure one of the three."""
    options = parser(__doc__)
    options.add_argument("what", choices=["times", "quality", "facts"])
    options.add_argument("--length", type=int, default=8192)
    options.add_argument("--windows", type=int, default=1)
    options.add_argument("--rules", default=RULES)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    source = load_source("demo:smollm2")
    tokenizer = TextTokens(source.beside, source.model.config).tokenizer
    windows = text_ids(tokenizer, arguments.length, arguments.windows)
    made = engines(source.model, arguments.rules, arguments.length)
    rows, figures = [], {}
    if arguments.what == "times":
        figures = times(made, windows[0], arguments.peers, arguments.threads)
        first = next(iter(figures.values()))
        for title, row in figures.items():
            token, base = statistics.median(row["tokens"]), statistics.median(first["tokens"])
            ratios = [a / b for a, b in zip(first["tokens"], row["tokens"], strict=False)]
            memory = f"{made[title].key_bytes / 1e6:.0f}" if title in made else "-"
            rows.append(
                (title, f"{row['prefill']:.1f}", f"{first['prefill'] / row['prefill']:.2f}",
                 f"{row['last']:.2f}", f"{first['last'] / row['last']:.2f}",
                 f"{1e3 * token:.2f}", f"{base / token:.2f}",
                 f"{min(ratios):.2f} to {max(ratios):.2f}", memory)
            )  # fmt: skip
        names = ("attention/keys", "prefill s", "x", f"last {LAST} s", "x", "token ms", "x",
                 "of single tokens", "MB")  # fmt: skip
    else:
        for title, engine in made.items():
            if arguments.what == "quality":
                figures[title] = perplexity(engine, windows)
                shown = f"{figures[title]:.3f}"
            else:
                figures[title] = found(engine, windows[0], tokenizer)
                shown = f"{figures[title]} of {DEPTHS}"
            progress(f"{title}: {shown}")
            rows.append((title, shown, f"{engine.key_bytes / 1e6:.0f}"))
        names = ("attention/keys", arguments.what, "MB")
    given = {"what": arguments.what, "length": arguments.length, "windows": arguments.windows}
    given |= {"machine": machine(), "figures": figures}
    give(arguments, given, table(names, rows))


if __name__ == "__main__":
    main()
