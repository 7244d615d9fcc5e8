# SPDX-License-Identifier: Apache-2.0
"""How many gradients obert needs: held-out loss of two small networks beside magnitude.

    python benchmarks/obert_gradients.py

One shot, no training behind it. The table stands in docs/how-to/prune-with-data.md.
"""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gossamer
from gossamer.cli.shell import table
from support.options import give, machine, parser, progress

CLASSES, WIDTH, SAMPLES, HELD_OUT = 20, 32, 4000, 2000
GRADIENTS = (4, 16, 32, 64, 128, 256, 1024)


def problem(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy clusters; the sign of a product of two inputs moves the label."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, WIDTH, generator=generator)
    cluster = torch.randint(CLASSES, (SAMPLES + HELD_OUT,), generator=generator)
    x = centres[cluster] + 1.2 * torch.randn(len(cluster), WIDTH, generator=generator)
    return x, (cluster + (x[:, 0] * x[:, 1] > 0).long() * CLASSES // 2) % CLASSES


def trained(seed: int, x: torch.Tensor, y: torch.Tensor) -> nn.Sequential:
    """A network with two hidden layers."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, CLASSES)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05)
    for _ in range(600):
        rows = torch.randint(SAMPLES, (128,))
        optimizer.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model


def task(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The loss the network was trained with."""
    return cross_entropy(model(batch[0]), batch[1])


def main() -> None:
    """One row per network, sparsity and loss."""
    given = parser(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(given.threads)
    rows = []
    for seed in range(1 if given.quick else 2):
        x, y = problem(seed)
        model = trained(seed, x, y)
        held = x[SAMPLES:], y[SAMPLES:]
        dense = task(model, held).item()
        for sparsity in (0.5, 0.8):
            pruned = copy.deepcopy(model)
            gossamer.sparsify(pruned, sparsity=sparsity)
            magnitude = task(pruned, held).item()
            for name, loss in (("probe of the outputs", None), ("task loss", task)):
                progress(f"network {seed}, {sparsity:.0%} zeros, {name}")
                found = {
                    str(count): after(model, x, y, sparsity, count, loss) for count in GRADIENTS
                }
                rows.append(
                    {"network": seed, "dense": dense, "sparsity": sparsity, "loss": name}
                    | {"magnitude": magnitude, "obert": found}
                )
    shown = table("network", "zeros", "loss", ">dense", ">magnitude", *(f">{n}" for n in GRADIENTS))
    for row in rows:
        figures = (row["dense"], row["magnitude"], *row["obert"].values())
        words = (str(row["network"]), f"{row['sparsity']:.0%}", row["loss"])
        shown.add_row(*words, *(f"{figure:.2f}" for figure in figures))
    give(given, {"machine": machine(), "rows": rows}, shown)


def after(model, x, y, sparsity, count, loss) -> float:
    """The held-out loss after obert saw this many gradients."""
    pruned = copy.deepcopy(model)
    pairs = [(x[i : i + 1], y[i : i + 1]) for i in range(count)]
    data = pairs if loss is not None else [one for one, _ in pairs]
    gossamer.sparsify(pruned, sparsity=sparsity, scorer="obert", data=data, loss=loss)
    return task(pruned, (x[SAMPLES:], y[SAMPLES:])).item()


if __name__ == "__main__":
    main()
