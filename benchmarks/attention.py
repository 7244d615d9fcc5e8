# SPDX-License-Identifier: Apache-2.0
"""Attention over a pattern beside dense and sparse attention of others.

    python benchmarks/attention.py [--parts calls,layers,growth,table,lists,memory] [--rounds 9]
                                   [--most 131072] [--json]

calls: 4,096 tokens, 4 heads of 64, BigBird with 85 % of its blocks empty; forward, and forward and
backward, beside SDPA, SDPA with a mask, and compiled FlexAttention (forward only: it has no
gradients on a CPU). layers: a training step of attention layers at 4,096 tokens beside those of
transformers, reformer-pytorch, linformer and local-attention, as far as they are installed.
growth: time per block from 1,024 to 131,072 tokens. table: time of a training step by length, for a
recurrent layer and each kind of attention. lists: strided and fixed patterns in one list of blocks
and in two. memory: peak of 131,072 tokens, forward and backward, beyond q, k, v and their
gradients.

CPU seconds on one thread, sides in turn; the median is printed, and the range of ratios of rounds.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.nn.attention import LinformerAttention, LSHAttention, SparseAttention
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.patterns.attention import parse_attention, to_block_mask

TOKENS, HEADS, DIM = 4096, 4, 64
BIGBIRD = "bigbird:block=64,window=3,global=2,random=3"
WIDTH = HEADS * DIM


def race(contenders, rounds):
    """CPU seconds of each round, sides in turn; one round before is not counted."""
    seconds = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            began = time.process_time()
            run()
            if turn:
                seconds[name].append(time.process_time() - began)
    return seconds


class Page:
    """What was measured: tables to read, or one object per line."""

    as_json = False

    def __init__(self):
        self.title, self.columns = "", ()

    def say(self, sentence):
        """Something beside the tables."""
        print(json.dumps({"note": sentence}) if self.as_json else f"\n{sentence}", flush=True)

    def table(self, title, *columns):
        """Rows to come belong to this table."""
        self.title, self.columns = title, columns
        if not self.as_json:
            print(f"\n### {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")

    def row(self, *cells):
        """One row: a cell is what it is, or a pair of that and how it is written."""
        pairs = [cell if isinstance(cell, tuple) else (cell, str(cell)) for cell in cells]
        if self.as_json:
            named = zip(self.columns, (value for value, _ in pairs), strict=True)
            print(json.dumps({"table": self.title, **dict(named)}), flush=True)
        else:
            print(f"| {' | '.join(text for _, text in pairs)} |", flush=True)


PAGE = Page()


def show(title, seconds, ours):
    """A table: the median, and by how much the first of `ours` is faster."""
    PAGE.table(title, "side", "ms", "times as long as ours (range over rounds)")
    for name, found in seconds.items():
        ratios = sorted(b / a for a, b in zip(seconds[ours], found, strict=True))
        middle, ms = statistics.median(ratios), statistics.median(found) * 1e3
        spread = f"{middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        PAGE.row(name, (ms, f"{ms:.1f}"), ([middle, ratios[0], ratios[-1]], spread))


def tensors(tokens, dtype=torch.float32, heads=HEADS):
    """Random q, k, v that need gradients, and the gradient of the result."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(1, heads, tokens, DIM, generator=generator, dtype=dtype) for _ in range(4)]
    return [t.requires_grad_() for t in made[:3]], made[3]


def call(function, inputs, grad=None):
    """A run of forward, or of forward and backward where a gradient is given."""

    def run():
        if grad is None:
            with torch.no_grad():
                function(*inputs)
        else:
            torch.autograd.grad(function(*inputs), inputs, grad)

    return run


def pattern_call(text, **settings):
    """`gossamer.attention` with a pattern."""
    return lambda q, k, v: gossamer.attention(q, k, v, text, **settings)


def calls(rounds):
    """One call of attention beside torch's."""
    inputs, grad = tensors(TOKENS)
    blocks = parse_attention(BIGBIRD).blocks(TOKENS, heads=HEADS)
    mask = torch.stack([torch.from_numpy(blocks.dense_mask(h)) for h in range(HEADS)])[None]
    PAGE.say(f"{BIGBIRD}: {1 - blocks.block_density:.1%} of blocks empty")
    from torch.nn.attention.flex_attention import flex_attention

    flex, block_mask = torch.compile(flex_attention), to_block_mask(blocks)
    sdpa = F.scaled_dot_product_attention
    masked = lambda q, k, v: sdpa(q, k, v, attn_mask=mask)  # noqa: E731
    flexed = lambda q, k, v: flex(q, k, v, block_mask=block_mask)  # noqa: E731
    sides = {"ours": pattern_call(BIGBIRD), "ours, full": pattern_call("full"), "SDPA": sdpa}
    sides["SDPA with the mask"] = masked
    plain = [t.detach() for t in inputs]
    forward = {name: call(side, plain) for name, side in sides.items()}
    forward["FlexAttention, compiled"] = call(flexed, plain)
    both = {name: call(side, inputs, grad) for name, side in sides.items()}
    show("Forward", race(forward, rounds), "ours")
    show("Forward and backward", race(both, rounds), "ours")
    rounded, grad = tensors(TOKENS, torch.bfloat16)
    sides.pop("SDPA with the mask")
    halves = {name: call(side, rounded, grad) for name, side in sides.items()}
    show("Forward and backward, bfloat16", race(halves, rounds), "ours")


def step(layer, x):
    """A training step of a layer without its optimizer."""

    def run():
        layer.zero_grad(set_to_none=True)
        out = layer(x)
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    return run


class _Peer(nn.Module):
    """A layer of somebody else, called as it wants to be."""

    def __init__(self, layer, run):
        super().__init__()
        self.layer, self.run = layer, run

    def forward(self, x):
        """What the layer makes of [1, tokens, WIDTH]."""
        return self.run(self.layer, x)


def transformers_layers():
    """Self-attention of BigBird, Longformer and Reformer as transformers has it."""
    from transformers import BigBirdConfig, LongformerConfig, ReformerConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    size = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "max_position_embeddings": TOKENS}
    config = BigBirdConfig(
        **size, block_size=64, num_random_blocks=3, attention_type="block_sparse"
    )
    ones = torch.ones(1, TOKENS)
    blocked = ones.view(1, TOKENS // 64, 64)
    band = torch.ones(1, 1, TOKENS // 64 - 4, 64, 192)

    def big_bird(layer, x):
        sides = ones.view(1, 1, TOKENS, 1), ones.view(1, 1, 1, TOKENS)
        return layer(x, band, *sides, blocked, blocked)

    long_config = LongformerConfig(**size, attention_window=[512], attention_probs_dropout_prob=0.0)
    kinds = torch.zeros(1, TOKENS)
    kinds[:, :64] = 10000.0  # global tokens

    def longformer(layer, x):
        return layer(
            x,
            attention_mask=kinds,
            is_index_masked=kinds < 0,
            is_index_global_attn=kinds > 0,
            is_global_attn=True,
        )

    reformer = ReformerConfig(
        **size, attention_head_size=DIM, num_hashes=4, lsh_attn_chunk_length=64, is_decoder=True,
        attn_layers=["lsh"], lsh_attention_probs_dropout_prob=0.0, num_buckets=TOKENS // 64 * 2,
    )  # fmt: skip
    return {
        "BigBird": _Peer(BigBirdBlockSparseAttention(config), big_bird),
        "Longformer": _Peer(LongformerSelfAttention(long_config, 0), longformer),
        "Reformer": _Peer(LSHSelfAttention(reformer, 0), lambda layer, x: layer(x).hidden_states),
    }


def own_layers(tokens=TOKENS):
    """Ours for the same jobs."""
    return {
        "BigBird": SparseAttention(WIDTH, HEADS, BIGBIRD, batch_first=True),
        "Longformer": SparseAttention(
            WIDTH, HEADS, "window:512+global:64", batch_first=True, global_tokens=64
        ),
        "Reformer": LSHAttention(WIDTH, HEADS, chunk=64, rounds=4, causal=True),
        "Linformer": LinformerAttention(WIDTH, HEADS, tokens, min(256, tokens)),
        "window": SparseAttention(WIDTH, HEADS, "window:512", causal=True, batch_first=True),
    }


def small_peers():
    """Packages for one kind each, where they are installed."""
    found = {}
    if importlib.util.find_spec("reformer_pytorch"):
        from reformer_pytorch import LSHSelfAttention

        found["Reformer", "reformer-pytorch"] = LSHSelfAttention(
            dim=WIDTH, heads=HEADS, bucket_size=64, n_hashes=4, causal=True
        )
    if importlib.util.find_spec("linformer"):
        from linformer import LinformerSelfAttention

        found["Linformer", "linformer"] = LinformerSelfAttention(
            dim=WIDTH, seq_len=TOKENS, heads=HEADS, k=256, one_kv_head=False, share_kv=False
        )
    if importlib.util.find_spec("local_attention"):
        from local_attention.transformer import LocalMHA

        found["window", "local-attention"] = LocalMHA(
            dim=WIDTH, window_size=256, heads=HEADS, dim_head=DIM, causal=True, prenorm=False
        )
    return found


def layers(rounds):
    """Training steps of whole layers, projections included."""
    torch.manual_seed(0)
    x = torch.randn(1, TOKENS, WIDTH, requires_grad=True)
    own = own_layers()
    others = {(kind, "transformers"): layer for kind, layer in transformers_layers().items()}
    for (kind, name), layer in (others | small_peers()).items():
        sides = {"ours": step(own[kind], x), name: step(layer.train(), x)}
        try:
            show(f"Training step, {kind}", race(sides, max(rounds // 2, 3)), "ours")
        except (RuntimeError, TypeError, AttributeError) as error:
            PAGE.say(f"{name} {kind}: did not run here ({type(error).__name__}: {error})")


def growth(rounds, most):
    """Time per block by length."""
    title = "Time per block, forward and backward, one head"
    PAGE.table(title, "tokens", "blocks", "us per block, window:1024", "MB of q")
    tokens = 1024
    while tokens <= most:
        inputs, grad = tensors(tokens, heads=1)
        count = len(parse_attention("window:1024").blocks(tokens, causal=True).by_query.columns)
        run = call(pattern_call("window:1024", causal=True), inputs, grad)
        best = min(race({"ours": run}, max(rounds // 2, 3))["ours"])
        each, size = best / count * 1e6, tokens * DIM * 4 / 1e6
        PAGE.row(tokens, count, (each, f"{each:.1f}"), (size, f"{size:.0f}"))
        tokens *= 2


class _Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        """Features of the same shape."""
        return self.cell(x)[0]


def table(rounds, most):
    """A training step by length, for each kind of layer."""
    lengths = [n for n in (1024, 4096, 16384) if n <= most]
    title = f"CPU seconds of a training step of one layer ({WIDTH} features, {HEADS} heads)"
    PAGE.table(title, "layer", *(f"{n} tokens" for n in lengths))
    kinds = ["recurrent (GRU)", "full", "strided:128", "Reformer", "Linformer", "BigBird", "window"]
    for kind in kinds:
        found = []
        for tokens in lengths:
            torch.manual_seed(0)
            x = torch.randn(1, tokens, WIDTH)
            if kind == "recurrent (GRU)":
                layer = _Recurrent()
            elif kind in ("full", "strided:128"):
                layer = SparseAttention(WIDTH, HEADS, kind, causal=True, batch_first=True)
            else:
                layer = own_layers(tokens)[kind]
            found.append(min(race({"it": step(layer, x)}, min(rounds, 3))["it"]))
        PAGE.row(kind, *((s, f"{s:.3f}") for s in found))


def lists(most):
    """Patterns whose pairs lie apart in one list of blocks and in two, forward and backward."""
    title = "Milliseconds forward and backward, one head of 64, causal"
    PAGE.table(title, "tokens", "pattern", "one list", "two lists")
    for tokens in (n for n in (4096, 16384, 65536) if n <= most):
        inputs, grad = tensors(tokens, heads=1)
        for text in ("strided:128", "fixed:128,c=8", "window:512"):
            sides = {"two": call(pattern_call(text, causal=True), inputs, grad)}
            if tokens <= 16384 and text != "window:512":
                blocks = parse_attention(text).blocks(tokens, causal=True)
                sides["one"] = call(pattern_call(blocks), inputs, grad)
            found = {side: 1e3 * min(times) for side, times in race(sides, 3).items()}
            cells = [
                (found[side], f"{found[side]:.0f}") if side in found else "-"
                for side in ("one", "two")
            ]
            PAGE.row(tokens, text, *cells)


def peak_bytes():
    """The most that this process has held since the mark was last reset."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def memory(tokens):
    """Peak memory of forward and backward beyond q, k, v and their gradients; a fresh process."""
    inputs, grad = tensors(1024, heads=1)
    call(pattern_call("window:1024", causal=True), inputs, grad)()
    inputs, grad = tensors(tokens, heads=1)
    held = sum(t.numel() * 4 for t in inputs)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    call(pattern_call("window:1024", causal=True), inputs, grad)()
    print((peak_bytes() - before - held) / 1e6)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default="calls,layers,growth,table,lists,memory")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--most", type=int, default=131072)
    parser.add_argument("--json", action="store_true", help="one object per line, no tables")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.memory_of:
        memory(asked.memory_of)
        return
    PAGE.as_json = asked.json
    PAGE.say(f"{cpu_name()}, {active_kernels()}, torch {torch.__version__}, one thread")
    parts = asked.parts.split(",")
    if "calls" in parts:
        calls(asked.rounds)
    if "layers" in parts:
        layers(asked.rounds)
    if "growth" in parts:
        growth(asked.rounds, asked.most)
    if "table" in parts:
        table(asked.rounds, asked.most)
    if "lists" in parts:
        lists(asked.most)
    if "memory" in parts:
        PAGE.table("Peak MB beyond q, k, v and their gradients (one head)", "tokens", "MB")
        for tokens in (16384, 65536, 131072):
            if tokens <= asked.most:
                command = [sys.executable, __file__, "--memory-of", str(tokens)]
                done = subprocess.run(  # noqa: S603  (this script)
                    command, check=True, stdout=subprocess.PIPE, text=True
                )
                megabytes = float(done.stdout)
                PAGE.row(tokens, (megabytes, f"{megabytes:.0f}"))


if __name__ == "__main__":
    main()
