# SPDX-License-Identifier: Apache-2.0
"""Residual networks pruned to 90 %, from images to logits, against other engines.

    GOSSAMER_DATA=DIR python benchmarks/resnet.py [--net resnet20] [--batch 1 16] [--threads 1 2]
        [--seconds 6] [--sparsity 0.9] [--json FILE] [--peers DIR]

ResNet-20 with trained weights (CIFAR-10) and one of ResNet-50's shape with random ones; every
convolution and the last layer keep the largest tenth of their weights. All engines get the same
weights, zeros included; int8 is static, calibrated on the same images. Engines take turns, the
best call of each counts; on one thread the time is that of the processor. `error` is against dense
torch fp32 with the same weights. Goals: 2x ONNX Runtime fp32 in fp32, and faster than its int8 in
int8.
"""

import torch
from rich.table import Table

import gossamer
from support.network_race import Contenders
from support.options import give, machine, parser, progress
from support.resnets import random_resnet50, trained_resnet20

GOAL = 2.0
NETS = {"resnet20": (trained_resnet20, 32), "resnet50": (random_resnet50, 224)}
CALIBRATION = {"resnet20": 64, "resnet50": 16}


def main():
    options = parser(__doc__.splitlines()[0], several_threads=True)
    options.add_argument("--net", choices=NETS, nargs="+", default=list(NETS))
    options.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    options.add_argument("--sparsity", type=float, default=0.9)
    given = options.parse_args()
    rows = []
    for name in given.net:
        build, side = NETS[name]
        model = build()
        gossamer.sparsify(model, sparsity=given.sparsity)
        torch.manual_seed(1)
        calibration = torch.randn(CALIBRATION[name], 3, side, side)
        for batch in given.batch:
            for threads in given.threads or (1, 2):
                torch.set_num_threads(threads)
                case = {"net": name, "batch": batch, "threads": threads}
                with Contenders(model, calibration[:batch], calibration, threads, given.peers) as c:
                    times = c.race(given.seconds or 6.0)
                    for one, ms in zip(c.found, times, strict=True):
                        entry = {"engine": one.engine, "precision": one.precision}
                        rows.append({**case, **entry, "ms": ms, "error": one.error})
                progress(f"{case}: {[(r['engine'], r['precision'], r['ms']) for r in rows[-9:]]}")
    document = {"machine": machine(), "sparsity": given.sparsity, "rows": rows}
    document["goals"] = goals(rows)
    give(given, document, shown(rows), goal_table(document["goals"]))


def time_of(rows, case, engine, precision):
    wanted = {**case, "engine": engine, "precision": precision}
    return next((r["ms"] for r in rows if wanted.items() <= r.items()), None)


def cases_of(rows):
    return list(dict.fromkeys((r["net"], r["batch"], r["threads"]) for r in rows))


def goals(rows):
    """Of each case: how much faster than ONNX Runtime in fp32 and in int8."""
    found = []
    for net, batch, threads in cases_of(rows):
        case = {"net": net, "batch": batch, "threads": threads}
        for precision, least in (("fp32", GOAL), ("int8", 1.0)):
            theirs = time_of(rows, case, "ONNX Runtime", precision)
            if theirs is not None:
                ratio = theirs / time_of(rows, case, "gossamer", precision)
                found.append(
                    {**case, "precision": precision, "ratio": ratio, "is_met": ratio >= least}
                )
    return found


def shown(rows):
    made = Table(title="ms of a batch; x: times as fast as ONNX Runtime fp32")
    for column in ("net", "batch", "threads", "engine", "precision", "ms", "x", "error"):
        made.add_column(column, justify="right")
    for r in rows:
        case = {key: r[key] for key in ("net", "batch", "threads")}
        base = time_of(rows, case, "ONNX Runtime", "fp32")
        made.add_row(
            *(str(r[key]) for key in ("net", "batch", "threads", "engine", "precision")),
            f"{r['ms']:.3f}",
            "" if base is None else f"{base / r['ms']:.2f}",
            f"{r['error']:.0e}",
        )
    return made


def goal_table(found):
    made = Table(title=f"gossamer over ONNX Runtime; goals {GOAL}x in fp32, faster in int8")
    for column in ("net", "batch", "threads", "precision", "ratio", "goal"):
        made.add_column(column, justify="right")
    for g in found:
        made.add_row(
            *(str(g[key]) for key in ("net", "batch", "threads", "precision")),
            f"{g['ratio']:.2f}",
            "met" if g["is_met"] else "missed",
        )
    return made


if __name__ == "__main__":
    main()
