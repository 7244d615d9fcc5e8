# SPDX-License-Identifier: Apache-2.0
"""SmolLM2's tied table in int4, rounded and trained, beside the int8 one: perplexity and tokens/s.

    GOSSAMER_DATA=DIR python benchmarks/smollm2_table.py [--steps 40] [--rounds 8] [--json]

The table is looked up and multiplied with from one copy. Everything else stays on the int4 grid of
the packaged file. In training the table is rounded whenever it is used, gradients pass straight
through to its float32 rows, and the dense model is the teacher; nothing else is trained. Windows to
train on are of the first 60 % of WikiText-2 valid, the perplexity is that of the engine itself on
windows behind them. The rate was fixed before the first run; nothing is chosen.
"""

import copy
import functools
import math

import torch
from torch import nn
from torch.nn import functional as F

from gossamer import settings
from gossamer.cli.shell import table
from gossamer.formats.grid import Grid, offsets_grid
from sparsify import SmolLM2
from support.decoders import Gossamer, race, rates
from support.options import give, machine, parser, progress

SPAN, TOKENS, BATCH, HELD = 32, 128, 2, 4
RATE = 3e-4
GRIDS = {"int4": Grid(4, SPAN), "int4_offset": offsets_grid(SPAN)}


class OnGrid(nn.Module):
    """A tied table on a grid: lookups and the head use what this gives."""

    def __init__(self, weight, grid):
        super().__init__()
        self.weight, self.grid = nn.Parameter(weight.clone()), grid

    def forward(self):
        """The rounded table; its gradient is that of the rows."""
        with torch.no_grad():
            moved = self.grid.rounded(self.weight) - self.weight
        return self.weight + moved


def outputs(model, weight, ids):
    """Logits with another table."""
    hidden = model.model(inputs_embeds=F.embedding(ids, weight)).last_hidden_state
    return F.linear(hidden, weight)


def divergence(logits, teacher):
    """Mean over tokens of KL(teacher || model)."""
    flat, wanted = (x.flatten(0, 1).log_softmax(-1) for x in (logits, teacher))
    return F.kl_div(flat, wanted, reduction="batchmean", log_target=True)


def trained(model, grid, batches, held, steps):
    """The table after so many steps on the grid, and its divergence on `held`."""
    table_ = OnGrid(model.model.embed_tokens.weight.detach(), grid)
    optimizer = torch.optim.Adam(table_.parameters(), lr=RATE)
    whole = model.model.embed_tokens.weight.detach()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 5) * (1 - step / steps)
        ids = batches[step % len(batches)]
        with torch.no_grad():
            teacher = outputs(model, whole, ids)
        optimizer.zero_grad()
        loss = divergence(outputs(model, table_(), ids), teacher)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            progress(f"step {step}: divergence {float(loss.detach()):.4f}")
    with torch.no_grad():
        weight = table_()
        losses = [divergence(outputs(model, weight, x), outputs(model, whole, x)) for x in held]
    return weight, float(torch.stack(losses).mean())


def with_table(model, weight):
    """A copy with another tied table."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        made.model.embed_tokens.weight.copy_(weight)
    return made


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=40, help="0: rounded only")
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--grids", nargs="+", default=["int4"], choices=sorted(GRIDS))
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    task = SmolLM2(settings.data_dir(), given.quick)
    model = task.model.eval().requires_grad_(False)
    windows = task.calibration.flatten()
    count = len(windows) // (BATCH * TOKENS)
    batches = list(windows[: count * BATCH * TOKENS].view(count, BATCH, TOKENS))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    held, fitted = ([batches[i] for i in part] for part in (order[:HELD], order[HELD:]))
    whole = model.model.embed_tokens.weight.detach()
    tables, found = {"int8": (whole, "int8")}, []
    for name in given.grids:
        weight, before = trained(model, GRIDS[name], fitted, held, 0)
        tables[f"{name}, rounded"] = (weight, "int4")
        progress(f"{name}: divergence {before:.4f} on windows held out")
        if not given.steps:
            continue
        weight, after = trained(model, GRIDS[name], fitted, held, given.steps)
        tables[f"{name}, trained"] = (weight, "int4")
        found.append({"grid": name, "divergence_before": before, "divergence_after": after})
        progress(f"{name}: divergence {before:.4f} -> {after:.4f} on windows held out")
    contenders = [
        Gossamer(title, functools.partial(with_table, model, weight), "int4", head)
        for title, (weight, head) in tables.items()
    ]
    before = machine()
    times, _ = race(contenders, given.rounds, given.threads)
    rows = []
    for one in contenders:
        total = task.evaluation.numel() - len(task.evaluation)
        quality = math.exp(one.likelihood(task.evaluation) / total)
        best, _ = rates(times[one.title])
        rows.append(
            {
                "title": one.title,
                "perplexity": quality,
                "head_bytes": one.engine.size.head_bytes,
                "tokens_per_second": best["after"],
            }
        )
        progress(f"{one.title}: perplexity {quality:.2f}, {best['after']:.0f} tokens/s")
    document = {"machine": before, "steps": given.steps, "training": found, "rows": rows}
    give(given, document, shown(rows))


def shown(rows):
    """One line per table."""
    made = table("table", ">perplexity", ">MB of the table", ">tokens/s over int8")
    first = rows[0]["tokens_per_second"]
    for row in rows:
        made.add_row(
            row["title"],
            f"{row['perplexity']:.2f}",
            f"{row['head_bytes'] / 1e6:.1f}",
            f"{row['tokens_per_second'] / first:.2f}",
        )
    return made


if __name__ == "__main__":
    main()
