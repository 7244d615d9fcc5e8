# SPDX-License-Identifier: Apache-2.0
"""Models of bytes trained from scratch with patterns of attention: bits per byte beside CPU time.

    GOSSAMER_DATA=DIR python benchmarks/trained_attention.py [--patterns "full;window:512;..."]
        [--seeds 0,1] [--steps 300] [--task next|masked] [--journal FILE] [--json FILE]

The first 2 MB of enwik8: 1.9 million bytes to learn from, the last 65,536 are predicted at the end.
All runs of a seed begin with the same weights (LSH shares those of queries and keys) and see the
same windows of 4,096 bytes in the same order. `next`: the next byte, causal; `masked`: 15 % of the
bytes are hidden, not causal, which is what Linformer can do. Positions are sinusoids, and a
convolution of four bytes stands before each attention, for all alike. Finished runs go to the
journal, and one that is there is not run again; the table shows the whole journal.
"""

import json
import lzma
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from gossamer import settings
from gossamer.cli.shell import table
from gossamer.nn.attention import LinformerAttention, LSHAttention, SparseAttention
from support.options import give, machine, parser, progress

WIDTH, HEADS, LAYERS, TOKENS, HELD_OUT = 128, 4, 4, 4096, 65_536
RATE, WARM_UP, HIDDEN = 2e-3, 15, 256  # HIDDEN: the number in the place of a byte
PATTERNS = (
    "full",
    "window:512",
    "bigbird:block=64,window=3,global=2,random=3",
    "strided:128",
    "fixed:128,c=8",
    "lsh:64",
)


def attention_of(pattern, causal):
    """The layer that a text names, as a function of one tensor."""
    if pattern.startswith("lsh:"):
        return LSHAttention(
            WIDTH, HEADS, chunk=int(pattern[4:]), rounds=2, causal=causal, seed=0
        )  # fmt: skip
    if pattern.startswith("linformer:"):
        return LinformerAttention(WIDTH, HEADS, TOKENS, int(pattern[10:]), causal=causal)
    return SparseAttention(WIDTH, HEADS, pattern, causal=causal, batch_first=True)


class Block(nn.Module):
    """Convolution, attention and a feed-forward part, each added to its input."""

    def __init__(self, pattern, causal):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(3)])
        self.near = nn.Conv1d(WIDTH, WIDTH, 4, groups=WIDTH)
        self.inner = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.attention = attention_of(pattern, causal)

    def forward(self, x):
        """The same shape."""
        x = x + self.near(F.pad(self.norms[0](x).transpose(1, 2), (3, 0))).transpose(1, 2)
        attended = self.attention(self.norms[1](x))
        x = x + (attended[0] if isinstance(attended, tuple) else attended)
        return x + self.inner(self.norms[2](x))


class Model(nn.Module):
    """Bytes to logits of bytes."""

    def __init__(self, pattern, causal, seed):
        super().__init__()
        blocks = []
        for number in range(LAYERS):
            torch.manual_seed(100 * seed + number)  # whatever the layers before have drawn
            blocks.append(Block(pattern, causal))
        torch.manual_seed(100 * seed + LAYERS)
        self.table = nn.Embedding(HIDDEN + 1, WIDTH)
        nn.init.normal_(self.table.weight, std=0.5)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))
        angles = torch.arange(TOKENS)[:, None] * 10_000 ** -torch.linspace(0, 1, WIDTH // 2)
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], 1) * 0.2)

    def forward(self, ids):
        """Logits [batch, tokens, 256]."""
        x = self.table(ids) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(model, window, task, generator):
    """Mean over the bytes that are asked for, in nats."""
    if task == "next":
        return F.cross_entropy(model(window[None, :-1])[0], window[1:])
    window = window[:-1]
    hidden = torch.rand(len(window), generator=generator) < 0.15
    logits = model(torch.where(hidden, HIDDEN, window)[None])[0]
    return F.cross_entropy(logits[hidden], window[hidden])


def run(pattern, seed, given, data):
    """Bits per byte of the end of the text, and CPU seconds of a step."""
    model = Model(pattern, given.task == "next", seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98))
    learn = data[:-HELD_OUT]
    draw = torch.Generator().manual_seed(seed)
    seconds = []
    for step in range(given.steps):
        rate = min((step + 1) / WARM_UP, 0.5 * (1 + math.cos(math.pi * step / given.steps)))
        optimizer.param_groups[0]["lr"] = RATE * rate
        start = int(torch.randint(0, len(learn) - TOKENS, (), generator=draw))
        began = time.process_time()
        loss = loss_of(model, learn[start : start + TOKENS + 1], given.task, draw)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.process_time() - began)
        if step % 25 == 24:
            progress(f"{pattern}, seed {seed}, step {step + 1}: {loss.item() / math.log(2):.2f}")
    tail = torch.Generator().manual_seed(99)
    with torch.no_grad():
        total = sum(
            loss_of(model, data[at : at + TOKENS + 1], given.task, tail).item()
            for at in range(len(data) - HELD_OUT - 1, len(data) - TOKENS, TOKENS)
        )
    return {
        "pattern": pattern,
        "task": given.task,
        "seed": seed,
        "steps": given.steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "bits": total / (HELD_OUT // TOKENS) / math.log(2),
        "seconds": sum(seconds),
        "step": sorted(seconds)[len(seconds) // 2],
    }


def main():
    """Train what the journal does not hold, and show it."""
    options = parser(__doc__)
    options.add_argument("--patterns", default=";".join(PATTERNS), help="split by ;")
    options.add_argument("--seeds", default="0")
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--task", choices=["next", "masked"], default="next")
    options.add_argument("--journal", type=Path, default=Path("trained_attention.jsonl"))
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    packed = settings.data_dir() / "enwik8-sample" / "enwik8_first2MB.xz"
    data = torch.frombuffer(bytearray(lzma.decompress(packed.read_bytes())), dtype=torch.uint8)
    lines = given.journal.read_text().splitlines() if given.journal.exists() else []
    runs = [json.loads(line) for line in lines]
    for pattern in given.patterns.split(";"):
        for seed in map(int, given.seeds.split(",")):
            key = {"pattern": pattern, "task": given.task, "seed": seed, "steps": given.steps}
            if any(key.items() <= known.items() for known in runs):
                continue
            runs.append(run(pattern, seed, given, data.long()))
            with given.journal.open("a") as file:
                file.write(json.dumps(runs[-1]) + "\n")
    rows = [
        (r["task"], r["pattern"], str(r["seed"]), f"{r['bits']:.3f}", f"{r['seconds']:.0f}",
         f"{1e3 * r['step']:.0f}", f"{r['parameters'] / 1e6:.2f}")
        for r in runs
    ]  # fmt: skip
    names = ("task", "pattern", "seed", "bits per byte", "CPU s", "ms of a step", "M parameters")
    give(given, {"machine": machine(), "runs": runs}, table(*names, rows=rows))


if __name__ == "__main__":
    main()
