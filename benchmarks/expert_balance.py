# SPDX-License-Identifier: Apache-2.0
"""Loads of eight experts on a task of eight clusters: with a balance loss, with a bias, without.

    python benchmarks/expert_balance.py [--steps 1500] [--seeds 0 1 2]
        [--arms "balance loss" bias] [--json]

Tokens come from eight Gaussian clusters, equally often, and each cluster has a linear map of its
own that is to be learned. Loads are those of the last
20 steps, fullest expert over mean; entropy 1 is perfect balance. `capacity 1.25` also counts the
tokens that found no place beside sum(max(0, n - C)).
"""

import math

import torch
from rich.table import Table

from gossamer.nn.moe import MoE, take_routing
from gossamer.training.experts import follow_experts
from support.options import give, machine, parser, progress

WIDTH, CLUSTERS, TOKENS = 16, 8, 512
ARMS = {
    "balance loss": {"balance": "loss"},
    "balance loss, weight 0.3": {"balance": "loss", "balance_weight": 0.3},
    "bias": {"balance": "bias"},
    "none": {"balance": "none"},
    "weight 0.3, capacity 1.25": {
        "balance": "loss",
        "balance_weight": 0.3,
        "capacity_factor": 1.25,
    },
    "none, capacity 1.25": {"balance": "none", "capacity_factor": 1.25},
}


def run(arm, seed, steps):
    torch.manual_seed(seed)
    centres, maps = 2 * torch.randn(CLUSTERS, WIDTH), torch.randn(CLUSTERS, WIDTH, WIDTH) / 4
    layer = MoE(WIDTH, 32, CLUSTERS, **ARMS[arm])
    optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-3)
    follow_experts(layer, optimizer)
    loads, entropies, losses, counted, formula = [], [], [], 0, 0
    for step in range(steps):
        chosen = torch.randint(CLUSTERS, (TOKENS,))
        x = centres[chosen] + 0.3 * torch.randn(TOKENS, WIDTH)
        wanted = torch.einsum("tio,ti->to", maps[chosen], x)
        loss = (layer(x) - wanted).square().mean()
        routing = layer.notes.last
        added, numbers = take_routing(layer)
        optimizer.zero_grad()
        (loss + added).backward()
        optimizer.step()
        if layer.router.capacity_factor:
            capacity = math.ceil(layer.router.capacity_factor * TOKENS / CLUSTERS)
            counted += routing.dropped
            formula += sum(max(0, n - capacity) for n in routing.wanted.tolist())
        if step >= steps - 20:
            loads.append(numbers["moe_load"])
            entropies.append(numbers["moe_entropy"])
            losses.append(float(loss.detach()))
    mean = [sum(part) / len(part) for part in (loads, entropies, losses)]
    return dict(zip(("load", "entropy", "loss"), mean, strict=True)) | {
        "dropped": counted,
        "formula": formula,
    }


def main():
    import warnings

    warnings.simplefilter("ignore", UserWarning)
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=1500)
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    given = options.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for arm in given.arms:
        rows[arm] = [run(arm, seed, given.steps) for seed in given.seeds]
        progress(f"{arm}: {rows[arm]}")
    table = Table(title=f"8 clusters, 8 experts, top-1, {given.steps} steps, seeds {given.seeds}")
    for column in ("arm", "max / mean load", "entropy", "loss", "dropped", "sum(max(0, n - C))"):
        table.add_column(column, justify="right")
    for arm, found in rows.items():
        texts = [
            ", ".join(f"{one[key]:.3f}" for one in found) for key in ("load", "entropy", "loss")
        ]
        sums = [f"{sum(one[key] for one in found):,}" for key in ("dropped", "formula")]
        table.add_row(arm, *texts, *sums)
    give(given, {"machine": machine(), "rows": rows}, table)


if __name__ == "__main__":
    main()
