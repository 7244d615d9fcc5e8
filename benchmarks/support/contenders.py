# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a race: torch's own products, the peers, gossamer's kernels.

Each is a stopwatch of one turn. Before it may start, its result is compared with the dense one.

Legend: T tokens, R rows (outputs), K columns (inputs).
"""

import functools
import math
import time
import warnings

import torch
import torch.nn.functional as F
from torch import nn

from gossamer.cli.quickstart.output import dense_int8
from gossamer.ops import dispatch
from gossamer.ops.timing import race
from gossamer.running.bench.linear import ceiling_run
from gossamer.running.rivals.engine_scripts.turn import turn
from support.options import progress

DENSE = "torch dense fp32"
# Error allowed, as a fraction of the norm of the result.
_TOLERANCE = {"fp32": 1e-4, "bf16": 0.02, "int8": 0.05}
_INT8_ENGINES = ("fbgemm", "onednn")


def gossamer_contenders(w_RK, sparse, x_TK, precision="fp32"):
    """Every kernel that takes the weight and computes in exactly this precision, by name."""
    made = {}
    expected_TR = F.linear(x_TK, w_RK)
    problem = dispatch.Problem(sparse, precision, len(x_TK))
    for kernel in dispatch.kernels_for("linear", problem):
        if kernel.precision != precision:
            continue
        call = functools.partial(kernel.pack(problem), x_TK, None, "none")
        if not agrees(call(), expected_TR, precision):
            raise SystemExit(
                f"{kernel.name} on {sparse.pattern} {list(sparse.shape)}: wrong result"
            )
        made[kernel.name] = watch(call)
    return made


def dense_contender(w_RK, x_TK):
    """What all ratios refer to."""
    return {DENSE: watch(functools.partial(F.linear, x_TK, w_RK))}


def csr_contender(w_RK, x_TK):
    """CSR of torch (MKL). It gets the input already transposed, which favours it."""
    product = functools.partial(torch.mm, _csr(w_RK), x_TK.t().contiguous())
    return {"torch CSR": watch(product)}


def low_precision_contenders(w_RK, x_TK):
    """Dense products of torch in bf16, with an input in bf16, and in dynamic int8."""
    bf16 = functools.partial(F.linear, x_TK.bfloat16(), w_RK.bfloat16())
    made = {"torch dense bf16": watch(bf16)}
    int8 = [watch(functools.partial(layer, x_TK)) for layer in _int8_layers(w_RK)]
    if int8:
        made["torch dense int8"] = lambda: min(seconds() for seconds in int8)
    return made


def peer_contenders(peers, w_RK, x_TK, task="forward"):
    """The engines in other processes that give the right result; task as in `peers/serve.py`."""
    made = {}
    expected_TR = F.linear(x_TK, w_RK)
    for peer, y_TR in peers.load(w_RK, x_TK, task):
        precision = "int8" if "int8" in peer.title else "fp32"
        if agrees(torch.from_numpy(y_TR), expected_TR, precision):
            made[peer.title] = peer.turn
        else:
            progress(f"{peer.title} {list(w_RK.shape)}: wrong result, left out")
    return made


def run_race(contenders, mixes, seconds, rounds):
    """(best microseconds by contender, GFLOP/s by instruction mix), all in one race."""
    contenders = {name: _within(seconds / 4, run) for name, run in contenders.items()}
    ceilings = {mix: ceiling_run(mix) for mix in mixes}
    watches = [
        *contenders.values(),
        *(watch(run) for run, _ in ceilings.values()),
    ]
    times = race(watches, budget_seconds=seconds, min_rounds=rounds)
    best_us = dict(zip(contenders, times, strict=False))
    rates = {
        mix: flops / us * 1e-3
        for (mix, (_, flops)), us in zip(ceilings.items(), times[len(contenders) :], strict=True)
    }
    return best_us, rates


def agrees(y_TR, expected_TR, precision):
    """Whether a result is the dense one, as far as its precision goes."""
    error = torch.linalg.vector_norm(y_TR - expected_TR)
    return bool(error <= _TOLERANCE[precision] * torch.linalg.vector_norm(expected_TR))


def watch(call):
    """A stopwatch of one turn of a call."""
    return functools.partial(turn, call, torch.get_num_threads())


def _within(share_seconds, stopwatch):
    """A contender that has had its share of the race sits out; one turn after the first counts."""
    spent, turns = 0.0, 0

    def run():
        nonlocal spent, turns
        if spent > share_seconds and turns > 1:
            return math.inf
        start = time.perf_counter()
        seconds = stopwatch()
        spent, turns = spent + time.perf_counter() - start, turns + 1
        return seconds

    return run


def _int8_layers(w_RK):
    """Dynamically quantised Linears of torch, one per engine: the better one depends on the CPU."""
    layer = nn.Sequential(nn.Linear(*reversed(w_RK.shape), bias=False))
    layer[0].weight = nn.Parameter(w_RK, requires_grad=False)
    made = []
    before = torch.backends.quantized.engine
    for engine in _INT8_ENGINES:
        if engine in torch.backends.quantized.supported_engines:
            torch.backends.quantized.engine = engine
            made.append(dense_int8(layer))
    torch.backends.quantized.engine = before
    return [layer for layer in made if layer is not None]


def _csr(w_RK):
    with warnings.catch_warnings():
        # "Sparse CSR tensor support is in beta state"
        warnings.simplefilter("ignore")
        return w_RK.to_sparse_csr()
