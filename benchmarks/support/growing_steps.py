# SPDX-License-Identifier: Apache-2.0
"""One training step of a grown GPT: all weights, and the zeros between copies kept as tiles."""

import copy
import time

import torch
from rich.table import Table

import gossamer
from gossamer.training.memory import measure
from gossamer.training.modes import choose_modes
from gossamer.zoo import GPT
from support.growing_gpt import VOCABULARY, loss_of

CONTEXT = 128


def grown(width, factor, opened, tokens):
    """A GPT of two blocks that grew to `width`, and its optimizer; None: nothing is kept zero."""
    torch.manual_seed(0)
    small = width // factor
    model = GPT(VOCABULARY, width=small, num_heads=small // 32, num_layers=2, context=CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batch = torch.randint(VOCABULARY, (tokens // CONTEXT, CONTEXT + 1))
    step(model, optimizer, batch)
    settings = {} if opened is None else {"opened": opened}
    model = gossamer.grow(model, optimizer, width=factor, **settings)
    if opened is not None:
        gossamer.compact(model, optimizer)
        choose_modes(model, tokens)
    step(model, optimizer, batch)
    return model, optimizer, batch


def step(model, optimizer, batch):
    """CPU seconds of one step."""
    began = time.process_time()
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.step()
    return time.process_time() - began


def compare(widths, factors, shares, tokens, rounds):
    """Rows of CPU seconds and bytes; contenders of a width and factor take turns, minima count."""
    rows = []
    for width in widths:
        for factor in factors:
            held = {opened: grown(width, factor, opened, tokens) for opened in (None, *shares)}
            best = dict.fromkeys(held, float("inf"))
            for _ in range(rounds):
                for opened, made in held.items():
                    best[opened] = min(best[opened], step(*made))
            for opened, (model, optimizer, _) in held.items():
                rows.append(
                    {
                        "width": width,
                        "factor": factor,
                        "opened": opened,
                        "zeros": zeros_of(model),
                        "ms": 1000 * best[opened],
                        "ratio": best[opened] / best[None],
                        "bytes": measure(model, optimizer).total_bytes,
                        "modes": modes_of(model),
                    }
                )
            del held
    return rows


def zeros_of(model):
    """Part of the hidden matrices that is zero."""
    layers = [m for m in model.blocks.modules() if hasattr(m, "mask_bits")]
    whole = sum(layer.matrix_shape[0] * layer.matrix_shape[1] for layer in layers)
    return 1 - sum(layer.nnz for layer in layers) / whole if whole else 0.0


def modes_of(model):
    """How compact layers compute, by name."""
    return {n: m.mode for n, m in copy.copy(model).named_modules() if hasattr(m, "mask_bits")}


def table_of(rows, tokens):
    """As people read it."""
    table = Table(title=f"One training step of two grown blocks, {tokens} tokens, CPU time")
    for head in ("width", "grown", "opened", "zeros", "ms", "of dense", "MiB of state", "kernels"):
        table.add_column(head, justify="right")
    for row in rows:
        used = list(row["modes"].values())
        table.add_row(
            str(row["width"]), f"{row['factor']} x", "all" if row["opened"] is None else
            f"{row['opened']:g}", f"{row['zeros']:.0%}", f"{row['ms']:.1f}", f"{row['ratio']:.2f}",
            f"{row['bytes'] / 2**20:.1f}", f"{used.count('kernel')} of {len(used)}",
        )  # fmt: skip
    return table
