"""Forward and backward of one pruned layer: dense, compact in each of its modes, SparseProp.

    python benchmarks/backward.py [--quick] [--json [FILE]] [--sparsity 0.9 ...]

A step is y = x W^T, then the gradients of x and of the kept weights, 1024 tokens, unstructured. No
optimizer: it costs all compact forms the same. Speed-up over torch dense fp32 in the same race.
"""

import itertools
import math
import statistics
from typing import get_args

import torch
from torch import nn

import gossamer
from gossamer.cli.shell import table
from gossamer.nn.layers import Mode
from gossamer.running.bench.linear import sample_weight
from support.cases import SHAPES
from support.contenders import DENSE, agrees, peer_contenders, run_race, watch
from support.options import give, machine, parser, progress, shape
from support.peer import TITLES, Peers

TOKENS = 1024
GOALS = {0.8: 2.0, 0.9: 3.5}
PEER, PEER_GOAL = "sparseprop", 2.0
_ROUNDS = 5


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument(
        "--shape", type=shape, action="append", help="outputs x inputs, repeatable"
    )
    options.add_argument("--sparsity", type=float, action="append", help="repeatable")
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    shapes = arguments.shape or SHAPES[: 1 if arguments.quick else None]
    sparsities = arguments.sparsity or tuple(GOALS)
    seconds = arguments.seconds or (4.0 if arguments.quick else 8.0)
    before = machine()
    cases = []
    with Peers(arguments.peers, arguments.threads, (PEER,)) as peers:
        for layer_shape, sparsity in itertools.product(shapes, sparsities):
            speedup = measure(layer_shape, sparsity, peers, seconds)
            cases.append({"shape": layer_shape, "sparsity": sparsity, "speedup": speedup})
            progress(f"{layer_shape[0]}x{layer_shape[1]}, {sparsity:.0%}: {figures(speedup)}")
    lines = [summarise(cases, sparsity) for sparsity in sparsities]
    document = {"machine": before, "tokens": TOKENS, "lines": lines, "cases": cases}
    give(arguments, document, line_table(lines))


def measure(layer_shape, sparsity, peers, seconds):
    """Speed-up over the dense step by contender."""
    w_RK, _ = sample_weight(layer_shape, sparsity)
    x_TK = torch.randn(TOKENS, layer_shape[1], generator=torch.Generator().manual_seed(1))
    dense = dense_layer(w_RK)
    expected_TR = dense(x_TK)
    watches = {DENSE: watch(step(dense, x_TK))}
    watches["torch dense bf16"] = watch(step(dense_layer(w_RK.bfloat16()), x_TK.bfloat16()))
    for mode in get_args(Mode):
        compact = gossamer.nn.Linear.from_dense(dense_layer(w_RK), w_RK != 0, mode=mode)
        if not agrees(compact(x_TK), expected_TR, "fp32"):
            raise SystemExit(f"mode {mode} on {list(layer_shape)}: wrong result")
        watches[f"compact, {mode}"] = watch(step(compact, x_TK))
    watches |= peer_contenders(peers, w_RK, x_TK, "step")
    times, _ = run_race(watches, (), seconds, _ROUNDS)
    return {name: times[DENSE] / us for name, us in times.items() if math.isfinite(us)}


def dense_layer(w_RK):
    layer = nn.Linear(*reversed(w_RK.shape), bias=False)
    layer.weight = nn.Parameter(w_RK)
    return layer


def step(layer, x_TK):
    x_TK = x_TK.detach().requires_grad_()
    grad_TR = torch.ones_like(layer(x_TK))

    def run():
        x_TK.grad = None
        layer.zero_grad()
        layer(x_TK).backward(grad_TR)

    return run


def summarise(cases, sparsity):
    """Worst case of each contender, and of compact against the peer."""
    chosen = [case["speedup"] for case in cases if case["sparsity"] == sparsity]
    names = [name for name in chosen[0] if all(name in case for case in chosen)]
    compact = [
        max(us for name, us in case.items() if name.startswith("compact")) for case in chosen
    ]
    goal, peer = GOALS.get(sparsity), TITLES[PEER]
    line = {
        "sparsity": sparsity,
        "worst": {name: min(case[name] for case in chosen) for name in names},
        "median": {name: statistics.median(case[name] for case in chosen) for name in names},
        "compact": min(compact),
        "goal": goal,
        "met": None if goal is None else min(compact) >= goal,
    }
    if peer in names:
        over = min(best / case[peer] for best, case in zip(compact, chosen, strict=True))
        line |= {"over_peer": over, "over_peer_met": over >= PEER_GOAL}
    return line


def figures(speedup):
    return ", ".join(f"{name} {ratio:.2f}x" for name, ratio in speedup.items())


def line_table(lines):
    names = [name for name in lines[0]["worst"] if name != DENSE]
    shown = table(
        *(">sparsity", ">best compact", ">goal", "verdict", f">over {TITLES[PEER]}", ">goal"),
        *("verdict", *(f">{name}" for name in names)),
    )
    words = {True: "met", False: "missed", None: ""}
    for line in lines:
        over = line.get("over_peer")
        shown.add_row(
            f"{line['sparsity']:.0%}",
            f"{line['compact']:.2f}x",
            "" if line["goal"] is None else f"{line['goal']:g}",
            words[line["met"]],
            "" if over is None else f"{over:.2f}x",
            f"{PEER_GOAL:g}",
            words[line.get("over_peer_met")],
            *(f"{line['worst'].get(name, math.nan):.2f}x" for name in names),
        )
    return shown


if __name__ == "__main__":
    main()
