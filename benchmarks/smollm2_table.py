# SPDX-License-Identifier: Apache-2.0
"""SmolLM2's tied table in int4, rounded three ways, beside the int8 one: perplexity and tokens/s.

    GOSSAMER_DATA=DIR python benchmarks/smollm2_table.py [--steps 40] [--rounds 8] [--json]
        [--keep FILE] [--without race|perplexity]

The table is looked up and multiplied with from one copy, int4 with a scale and an offset for 32
numbers. Everything else stays on the int4 grid of the packaged file.

- rounded: to the nearest levels.
- compensated: columns one after the other, and those behind make up for the error on what the
  output layer sees (GPTQ; `support/compensated.py`).
- trained: the levels of the compensated table, scales and offsets, follow the gradients of the
  divergence from the dense model for some steps; codes stay. Nothing else is trained.

Windows to calibrate and train on are of the first 60 % of WikiText-2 valid, the perplexity is that
of the engine itself on windows behind them. Damping was chosen by the divergence on windows of the
first part that are held out; rate and number of steps were fixed before the first run. `--keep`
saves the tables in a file, or takes them from there, so that they can be timed apart.
"""

import copy
import functools
import math
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from gossamer import settings
from gossamer.cli.shell import table
from gossamer.formats.grid import offsets_grid
from sparsify import SmolLM2
from support.compensated import SPAN, compensated, gram_of
from support.decoders import Gossamer, race, rates
from support.options import give, machine, parser, progress

TOKENS, BATCH, HELD, CALIBRATED = 128, 2, 4, 32
RATE, DAMPING = 1e-3, 0.1


class TrainedLevels(nn.Module):
    """A table whose scales and offsets are trained, as parts of what they were."""

    def __init__(self, codes, scales, offsets):
        super().__init__()
        self.codes, self.scales, self.offsets = codes.to(torch.uint8), scales, offsets
        self.stretch = nn.Parameter(torch.zeros_like(scales))
        self.shift = nn.Parameter(torch.zeros_like(offsets))

    def levels(self):
        """Scales and offsets of now."""
        return self.scales * (1 + self.stretch), self.offsets + self.scales * self.shift

    def forward(self):
        """The table."""
        return spread(self.codes, *self.levels())

    @torch.no_grad()
    def stored(self):
        """The table as files and engines have it: levels are fp16."""
        return spread(self.codes, *(one.half().float() for one in self.levels()))


def spread(codes, scales, offsets):
    """The numbers behind codes."""
    shape = (*scales.shape, SPAN)
    return (codes.view(shape) * scales[..., None] + offsets[..., None]).view(codes.shape)


def outputs(model, weight, ids):
    """Logits with another table."""
    hidden = model.model(inputs_embeds=F.embedding(ids, weight)).last_hidden_state
    return F.linear(hidden, weight)


def divergence(logits, teacher):
    """Mean over tokens of KL(teacher || model)."""
    flat, wanted = (x.flatten(0, 1).log_softmax(-1) for x in (logits, teacher))
    return F.kl_div(flat, wanted, reduction="batchmean", log_target=True)


def divergence_on(model, weight, batches):
    """From the dense model, mean over batches."""
    whole = model.model.embed_tokens.weight.detach()
    with torch.no_grad():
        found = [divergence(outputs(model, weight, x), outputs(model, whole, x)) for x in batches]
    return float(torch.stack(found).mean())


def trained(model, held, batches, steps):
    """The table after so many steps of its levels."""
    optimizer = torch.optim.Adam(held.parameters(), lr=RATE)
    whole = model.model.embed_tokens.weight.detach()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 5) * (1 - step / steps)
        ids = batches[step % len(batches)]
        with torch.no_grad():
            teacher = outputs(model, whole, ids)
        optimizer.zero_grad()
        loss = divergence(outputs(model, held(), ids), teacher)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            progress(f"step {step}: divergence {float(loss.detach()):.4f}")
    return held.stored()


def make_tables(model, batches, held, steps):
    """Tables by name, and the divergence of each on windows held out."""
    whole = model.model.embed_tokens.weight.detach()
    found = {"int4, rounded": offsets_grid(SPAN).rounded(whole)}
    with torch.no_grad():
        gram = gram_of(
            lambda ids: model.model(input_ids=ids).last_hidden_state, batches[:CALIBRATED]
        )
        levels = TrainedLevels(*compensated(whole, gram, DAMPING))
    found["int4, compensated"] = levels.stored()
    progress("compensated")
    if steps:
        found["int4, trained"] = trained(model, levels, batches, steps)
    losses = {}
    for name, weight in found.items():
        if offsets_grid(SPAN).encode_exactly(weight) is None:
            raise SystemExit(f"{name}: the engine would round this table again.")
        losses[name] = divergence_on(model, weight, held)
        progress(f"{name}: divergence {losses[name]:.4f} on windows held out")
    return found, losses


def with_table(model, weight):
    """A copy with another tied table."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        made.model.embed_tokens.weight.copy_(weight)
    return made


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=40, help="0: not trained")
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--keep", type=Path, help="a file for the tables, or with them")
    options.add_argument("--without", choices=["race", "perplexity"])
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    task = SmolLM2(settings.data_dir(), given.quick)
    model = task.model.eval().requires_grad_(False)
    losses = {}
    if given.keep is not None and given.keep.exists():
        tables = load_file(given.keep)
    else:
        windows = task.calibration.flatten()
        count = len(windows) // (BATCH * TOKENS)
        batches = list(windows[: count * BATCH * TOKENS].view(count, BATCH, TOKENS))
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
        held, fitted = ([batches[i] for i in part] for part in (order[:HELD], order[HELD:]))
        tables, losses = make_tables(model, fitted, held, given.steps)
        if given.keep is not None:
            save_file(tables, given.keep)
    contenders = [
        Gossamer("int8", lambda: model, "int4", "int8"),
        *(
            Gossamer(name, functools.partial(with_table, model, weight), "int4", "int4")
            for name, weight in sorted(tables.items())
        ),
    ]
    before = machine()
    times = {}
    if given.without != "race":
        times, _ = race(contenders, given.rounds, given.threads)
    rows = []
    for one in contenders:
        row = {"title": one.title, "head_bytes": one.engine.size.head_bytes}
        row["divergence"] = losses.get(one.title)
        if times:
            best, _ = rates(times[one.title])
            row["tokens_per_second"] = best["after"]
        if given.without != "perplexity":
            total = task.evaluation.numel() - len(task.evaluation)
            row["perplexity"] = math.exp(one.likelihood(task.evaluation) / total)
        rows.append(row)
        progress(str(row))
    document = {"machine": before, "steps": given.steps, "rows": rows}
    give(given, document, shown(rows))


def shown(rows):
    """One line per table."""
    made = table("table", ">divergence", ">perplexity", ">MB of the table", ">tokens/s over int8")
    first = rows[0].get("tokens_per_second")
    for row in rows:
        speed, quality, loss = (
            row.get(key) for key in ("tokens_per_second", "perplexity", "divergence")
        )
        made.add_row(
            row["title"],
            "" if loss is None else f"{loss:.4f}",
            "" if quality is None else f"{quality:.2f}",
            f"{row['head_bytes'] / 1e6:.1f}",
            f"{speed / first:.2f}" if speed and first else "",
        )
    return made


if __name__ == "__main__":
    main()
