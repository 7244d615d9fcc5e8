"""Which kernels `gossamer.compile` takes beside busy neighbours, and what they cost alone.

    python benchmarks/busy_choice.py [--compiles 100] [--load 4] [--threads 1] [--json]

Layers of several shapes, zeros, precisions and token counts are compiled, each with an empty cache,
while `--load` processes keep the machine busy: half of them compute, half of them stream memory.
Then the load ends, and all kernels of each layer race for long. A choice is wrong if the kernel
that was taken is more than 1.15 times slower there than the best one. The race afterwards runs on
the clock of the processor where there is one thread, and a choice that looks wrong is raced again,
so that what else runs on the machine does not count.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.ops import Problem, kernels_for
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.running.choice import Chooser, CostTable

SHAPES = ((384, 384), (1536, 384), (384, 1536), (768, 768), (3072, 768))
KINDS = (
    *((0.8, "fp32", 128), (0.9, "int8", 128), (0.9, "fp32", 1), (0.8, "int8", 16)),
    *((0.5, "int8", 2), (0.5, "int8", 128), (0.5, "bf16", 128)),
)
WRONG = 1.15
LIFETIME_SECONDS = 1800
REFERENCE_SECONDS, MIN_ROUNDS, MAX_ROUNDS = 1.0, 20, 4000
COMPUTE = """
import time
import numpy as np
end = time.monotonic() + {seconds}
a = np.ones((256, 256), dtype=np.float32)
while time.monotonic() < end:
    a @ a
"""
STREAM = """
import time
import numpy as np
end = time.monotonic() + {seconds}
a = np.ones(16_000_000, dtype=np.float32)
while time.monotonic() < end:
    a += 1
"""


class Neighbours:
    """Processes that keep a machine busy; a context that ends them."""

    def __init__(self, count):
        self._count = count

    def __enter__(self):
        # They end by themselves, too, should this process be killed.
        texts = [(COMPUTE, STREAM)[i % 2] for i in range(self._count)]
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._running = [
            subprocess.Popen(  # noqa: S603  (our own interpreter and text)
                [sys.executable, "-c", text.format(seconds=LIFETIME_SECONDS)], env=environment
            )
            for text in texts
        ]
        if self._running:
            time.sleep(1.0)

    def __exit__(self, *error):
        for process in self._running:
            process.kill()
            process.wait()


def make_case(shape, kind):
    sparsity, precision, tokens = kind
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(shape[1], shape[0]))
    gossamer.sparsify(model, sparsity=sparsity)
    name = f"{shape[0]}x{shape[1]} {sparsity:.0%} {precision} {tokens} tokens"
    return name, model, precision, tokens


def compiled_kernel(case, folder):
    """The kernel that a compile without any record takes, and the seconds that took."""
    _, model, precision, tokens = case
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        chooser = Chooser(CostTable(Path(place) / "kernels.json"))
        fast = gossamer.compile(model, tokens=tokens, precision=precision, chooser=chooser)
    return fast[0].choices[0].kernel, time.perf_counter() - start


def reference(case, names=None, seconds=REFERENCE_SECONDS):
    """Best microseconds of dense and every kernel, all in turn."""
    _, model, precision, tokens = case
    layer = model[0]
    weight = layer.dense_weight()
    problem = Problem(layer.matrix(), precision, tokens)
    x, bias = torch.randn(tokens, weight.shape[1]), torch.zeros(weight.shape[0])
    calls = {"dense": lambda: F.linear(x, weight, bias)}
    for kernel in kernels_for("linear", problem):
        run = kernel.pack(problem)
        calls[kernel.name] = lambda run=run: run(x, bias, "none")
    if names is not None:
        calls = {name: call for name, call in calls.items() if name in names}
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    best = dict.fromkeys(calls, float("inf"))
    with torch.inference_mode():
        start = clock()
        for rounds in range(MAX_ROUNDS):
            for name, call in calls.items():
                before = clock()
                call()
                best[name] = min(best[name], clock() - before)
            if rounds >= MIN_ROUNDS and clock() - start > seconds:
                break
    return {name: 1e6 * taken for name, taken in best.items()}


def slowdown(case, kernel, times):
    """How many times slower the kernel is than the best; a wrong one is raced again."""
    best = min(times, key=times.get)
    if times[kernel] / times[best] > WRONG:
        times = reference(case, {kernel, best}, 4 * REFERENCE_SECONDS)
    return times[kernel] / times[best]


def loses_to_dense(choice, times):
    """Whether a dense product of the same precision would have been clearly faster."""
    dense = [us for name, us in times.items() if name.startswith("dense")]
    return times[choice["kernel"]] > WRONG * min(dense)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiles", type=int, default=100)
    parser.add_argument("--load", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cases = [make_case(shape, kind) for kind, shape in itertools.product(KINDS, SHAPES)]
    taken = []
    with tempfile.TemporaryDirectory() as folder, Neighbours(arguments.load):
        for number in range(arguments.compiles):
            index = number % len(cases)
            taken.append((index, *compiled_kernel(cases[index], folder)))
    times = {index: reference(cases[index]) for index in sorted({index for index, *_ in taken})}
    known, choices = {}, []
    for index, kernel, seconds in taken:
        if (index, kernel) not in known:
            known[index, kernel] = slowdown(cases[index], kernel, times[index])
        choices.append(
            {
                "layer": cases[index][0],
                "kernel": kernel,
                "slower": known[index, kernel],
                "best": min(times[index], key=times[index].get),
                "seconds": seconds,
            }
        )
    wrong = [choice for choice in choices if choice["slower"] > WRONG]
    named = {cases[index][0]: own for index, own in times.items()}
    losing = sum(loses_to_dense(choice, named[choice["layer"]]) for choice in wrong)
    if arguments.json:
        print(
            json.dumps(
                {"wrong": len(wrong), "losing": losing, "choices": choices, "times": times},
                indent=1,
            )
        )
        return
    print(f"{cpu_name()}, {active_kernels()}, {arguments.threads} threads, load {arguments.load}")
    print(f"{len(wrong)} of {len(choices)} choices are more than {WRONG}x slower than the best")
    print(f"{losing} of them lose to a dense product of the precision that was allowed")
    print(f"{sum(choice['seconds'] for choice in choices) / len(choices):.2f} s per compile")
    for choice in sorted(choices, key=lambda one: -one["slower"])[:12]:
        print(
            f"  {choice['slower']:5.2f}x  {choice['layer']}: took {choice['kernel']},"
            f" best {choice['best']}"
        )


if __name__ == "__main__":
    main()
