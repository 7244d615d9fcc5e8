"""Real patterns: transformer layers of the Deep Learning Matrix Collection, pruned by magnitude.

    python benchmarks/dlmc.py [--quick] [--json [FILE]] [--tokens 128 ...]

Speed-up over torch dense fp32, geometric mean over the layers of one sparsity. For gossamer the
fastest kernel of each matrix counts, as in `gossamer.compile`. The collection holds positions, no
values: values are random. The data are looked for in GOSSAMER_DATA/dlmc-subset.
"""

import itertools
import math
import re
import statistics
import tarfile

import numpy as np
import torch

from gossamer import settings
from gossamer.cli.shell import table
from gossamer.formats import SparseMatrix
from gossamer.running.bench.linear import mix_of
from support import contenders
from support.options import give, machine, parser, progress
from support.peer import Peers

GOALS = {0.5: 1.65, 0.7: 2.4, 0.8: 3.4, 0.9: 6.0, 0.95: 9.0, 0.98: 14.0}
TOKENS = (128, 512)
QUICK_SPARSITIES = (0.5, 0.8, 0.9, 0.98)
GOSSAMER = "gossamer"
SPARSE_PEERS = ("scipy", "deepsparse", "sparseprop")
_ARCHIVE = "dlmc_subset.tar.xz"
_NAME = re.compile(r"transformer/magnitude_pruning/([0-9.]+)/(.*)\.smtx")
_ROUNDS = 6


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--tokens", type=int, action="append", help="repeatable")
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    layers = read_layers()
    sparsities = QUICK_SPARSITIES if arguments.quick else tuple(GOALS)
    tokens = arguments.tokens or (TOKENS[:1] if arguments.quick else TOKENS)
    seconds = arguments.seconds or (2.0 if arguments.quick else 6.0)
    before = machine()
    cases = []
    with Peers(arguments.peers, arguments.threads, SPARSE_PEERS) as peers:
        for count, sparsity in itertools.product(tokens, sparsities):
            for name, mask_RK in layers[sparsity].items():
                cases.append(
                    {"layer": name, "shape": list(mask_RK.shape), "sparsity": sparsity}
                    | {"tokens": count}
                    | measure(mask_RK, count, peers, seconds)
                )
                progress(
                    f"{count} tokens, {sparsity:.0%}, {name}:"
                    f" {cases[-1]['speedup'][GOSSAMER]:.2f}x ({cases[-1]['kernel']})"
                )
    lines = [summarise(cases, *key) for key in itertools.product(tokens, sparsities)]
    give(arguments, {"machine": before, "lines": lines, "cases": cases}, line_table(lines))


def read_layers():
    """Masks by sparsity and layer name."""
    folder = settings.data_dir()
    archive = None if folder is None else folder / "dlmc-subset" / _ARCHIVE
    if archive is None or not archive.is_file():
        raise SystemExit(
            f"dlmc: no dlmc-subset/{_ARCHIVE} in {folder or '../shared/data'}. Set GOSSAMER_DATA to"
            " the folder that holds dlmc-subset."
        )
    layers = {}
    with tarfile.open(archive) as files:
        for member in files:
            name = _NAME.fullmatch(member.name)
            if name is not None:
                mask_RK = read_mask(files.extractfile(member).read().decode())
                layers.setdefault(float(name[1]), {})[name[2]] = mask_RK
    return layers


def read_mask(text):
    """A mask from smtx: sizes, row offsets, column indices, one line each."""
    sizes, offsets, indices = (
        np.array(line.replace(",", " ").split(), dtype=np.int64) for line in text.split("\n")[:3]
    )
    rows = np.repeat(np.arange(sizes[0]), np.diff(offsets))
    mask_RK = torch.zeros(int(sizes[0]), int(sizes[1]), dtype=torch.bool)
    mask_RK[torch.from_numpy(rows), torch.from_numpy(indices)] = True
    return mask_RK


def measure(mask_RK, tokens, peers, seconds):
    """Speed-ups over torch dense fp32 by contender, and the kernel that gave gossamer's."""
    generator = torch.Generator().manual_seed(0)
    w_RK = torch.randn(mask_RK.shape, generator=generator) * mask_RK
    x_TK = torch.randn(tokens, mask_RK.shape[1], generator=generator)
    sparse = SparseMatrix.from_dense(w_RK, mask_RK)
    kernels = contenders.gossamer_contenders(w_RK, sparse, x_TK)
    watches = contenders.dense_contender(w_RK, x_TK)
    watches |= contenders.csr_contender(w_RK, x_TK)
    watches |= contenders.peer_contenders(peers, w_RK, x_TK)
    watches |= kernels
    mixes = {mix_of(name) for name in kernels}
    with torch.inference_mode():
        times, rates = contenders.run_race(watches, mixes, seconds, _ROUNDS)
    fastest = min(kernels, key=times.__getitem__)
    times[GOSSAMER] = times[fastest]
    dense_us = times.pop(contenders.DENSE)
    kept_gflops = 2e-3 * tokens * sparse.nnz / times[fastest]
    return {
        "kernel": fastest,
        "dense_us": dense_us,
        "kept_gflops": kept_gflops,
        "ceiling_fraction": kept_gflops / rates[mix_of(fastest)] / torch.get_num_threads(),
        "speedup": {
            name: dense_us / us
            for name, us in times.items()
            if name not in kernels and math.isfinite(us)
        },
    }


def summarise(cases, tokens, sparsity):
    """Geometric means over the layers that a contender ran."""
    chosen = [case for case in cases if (case["tokens"], case["sparsity"]) == (tokens, sparsity)]
    names = dict.fromkeys(name for case in chosen for name in case["speedup"])
    means = {
        name: statistics.geometric_mean(
            case["speedup"][name] for case in chosen if name in case["speedup"]
        )
        for name in names
    }
    goal = GOALS[sparsity]
    return {
        "tokens": tokens,
        "sparsity": sparsity,
        "layers": len(chosen),
        "speedup": means,
        "ceiling_fraction": statistics.median(case["ceiling_fraction"] for case in chosen),
        "goal": goal,
        "met": means[GOSSAMER] >= goal,
    }


def line_table(lines):
    names = [name for name in lines[0]["speedup"] if name != GOSSAMER]
    shown = table(
        *(">tokens", ">sparsity", ">layers", ">gossamer", ">goal", "verdict", ">of ceiling"),
        *(f">{name}" for name in names),
    )
    for line in lines:
        means = line["speedup"]
        shown.add_row(
            str(line["tokens"]),
            f"{line['sparsity']:.0%}",
            str(line["layers"]),
            f"{means[GOSSAMER]:.2f}x",
            f"{line['goal']:g}",
            "met" if line["met"] else "missed",
            f"{line['ceiling_fraction']:.0%}",
            *(f"{means[name]:.2f}x" if name in means else "" for name in names),
        )
    return shown


if __name__ == "__main__":
    main()
