# SPDX-License-Identifier: Apache-2.0
"""Tables: a training step and a lookup against fbgemm and torch, on tables in and out of the cache.

    benchmarks/peers/setup.sh fbgemm build/peers
    python benchmarks/tables.py [--peers build/peers] [--sizes 0.1 1 4] [--rounds 30] [--lean]
        [--small-pages] [--only training|inference|dlrm] [--json]

One thread, CPU time, everyone in the same process and in turns; fastest and median of many rounds,
every round with other ids, so that rows come from memory where the table is larger than the cache.
fbgemm-gpu-cpu is read from its own environment, which has the same torch.

Training: 2048 bags of 10 ids, width 64, row-wise Adagrad: lookup, backward and update.
"full table" rounds the whole table in each step, as HAWQ-type quantisation does.
Inference: the same bags.
--only dlrm: a whole DLRM with 26 tables of 1 GiB together, one id each, batches of 1, 128 and 2048.
"""

import argparse
import ctypes
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import gossamer
import gossamer.zoo
from gossamer.io.torch_bags import export_bag_4bit
from gossamer.nn.layers.tables import packed_table
from gossamer.ops.table import Bags, PackedRows, Rows
from gossamer.settings import peers_dir
from gossamer.training.optim.tables import TableAdagrad

WIDTH, BAGS, BAG_SIZE = 64, 2048, 10
NUMBERS, TABLES = 13, 26
GIB = 2**30
PR_SET_THP_DISABLE = 41  # of Linux


def find_fbgemm(folder):
    """Import fbgemm from the environment of the peer; None if it is not there."""
    found = list(Path(folder).glob("fbgemm/lib/python3*/site-packages"))
    sys.path += [str(path) for path in found]
    try:
        import fbgemm_gpu  # noqa: F401
    except ImportError:
        print(
            f"fbgemm is not installed; benchmarks/peers/setup.sh fbgemm {folder}", file=sys.stderr
        )
        return False
    return True


def fbgemm_training(num_rows):
    """Their table-batched embedding with exact row-wise Adagrad."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    return SplitTableBatchedEmbeddingBagsCodegen(
        [(num_rows, WIDTH, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.01,
        eps=1e-8,
    )


def fbgemm_int4(num_rows):
    """Their inference table in 4 bits, with rows of its own making."""
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
        IntNBitTableBatchedEmbeddingBagsCodegen,
    )

    table = IntNBitTableBatchedEmbeddingBagsCodegen(
        [("", num_rows, WIDTH, SparseType.INT4, EmbeddingLocation.HOST)],
        device="cpu",
        output_dtype=SparseType.FP32,
    )
    table.fill_random_weights()
    return table


def race(contenders, make_input, rounds):
    """Seconds of each contender, round by round."""
    times = {name: [] for name in contenders}
    for number in range(rounds + 2):
        for place, (name, run) in enumerate(contenders.items()):
            # Nobody finds rows in the cache that another one left there.
            given = make_input(number * len(contenders) + place)
            start = time.process_time()
            run(given)
            took = time.process_time() - start
            if number >= 2:
                times[name].append(took)
    return times


def ids_of(num_rows):
    def make(number):
        generator = torch.Generator().manual_seed(number)
        return torch.randint(0, num_rows, (BAGS * BAG_SIZE,), generator=generator)

    return make


def training(num_rows, rounds, has_fbgemm, with_full, lean):
    """One training step of each contender on a table of this size; lean: two tables, not four."""
    offsets = torch.arange(0, BAGS * BAG_SIZE, BAG_SIZE)
    ends = torch.cat([offsets, torch.tensor([BAGS * BAG_SIZE])])
    grad = torch.randn(BAGS, WIDTH, generator=torch.Generator().manual_seed(0)) * 1e-3
    shared = torch.randn(num_rows, WIDTH).mul_(0.01)
    contenders = {}
    if has_fbgemm:
        theirs = fbgemm_training(num_rows)
        contenders["fbgemm"] = lambda ids: theirs(ids, ends).backward(grad)
    for name, how in {
        "gossamer fp32": {"bits": None},
        "gossamer int4": {"bits": 4},
        "gossamer int4 rows": {"bits": 4, "granularity": "row"},
    }.items():
        # All of ours move one table; its state of Adagrad is their own.
        stock = nn.EmbeddingBag(num_rows, WIDTH, mode="sum", _weight=shared)
        table = gossamer.nn.EmbeddingBag.from_dense(stock, **how)
        optimizer = TableAdagrad([table.weight], lr=0.01, fused=True)

        def step(ids, table=table, optimizer=optimizer):
            table(ids, offsets).backward(grad)
            optimizer.step()

        contenders[name] = step
    if lean:
        return race(contenders, ids_of(num_rows), rounds)
    stock = nn.EmbeddingBag(num_rows, WIDTH, mode="sum", _weight=shared.clone(), sparse=True)
    sgd = torch.optim.SGD(stock.parameters(), lr=1e-3)

    def torch_step(ids):
        stock(ids, offsets).backward(grad)
        sgd.step()
        sgd.zero_grad()

    contenders["torch sparse, SGD"] = torch_step
    codes = gossamer.nn.EmbeddingBag(
        num_rows, WIDTH, mode="sum", bits=8, granularity="row", shadow=False
    )
    of_codes = TableAdagrad([codes.weight], lr=0.01, fused=True)

    def code_step(ids):
        codes(ids, offsets).backward(grad)
        of_codes.step()

    contenders["gossamer int8, no shadow"] = code_step
    times = race(contenders, ids_of(num_rows), rounds)
    if with_full:
        times["full table"] = full_table(shared, offsets, grad, ids_of(num_rows))
    return times


def full_table(weight, offsets, grad, make_ids):
    """HAWQ-type: the whole table is rounded, then looked up; SGD on the rows."""
    table = nn.Parameter(weight)
    times = []
    for number in range(4):
        ids = make_ids(number)
        start = time.process_time()
        scale = table.detach().abs().amax() / 7
        rounded = (table.detach() / scale).round_().clamp_(-8, 7).mul_(scale)
        F.embedding_bag(ids, rounded, offsets, mode="sum")
        rows, inverse = ids.unique(return_inverse=True)
        found = grad.new_zeros(len(rows), WIDTH)
        found.index_add_(0, inverse, grad.repeat_interleave(BAG_SIZE, 0))
        table.data.index_add_(0, rows, found, alpha=-1e-3)
        del rounded
        times.append(time.process_time() - start)
    return times[1:]


def inference(num_rows, rounds, has_fbgemm):
    """Lookups of each contender in a table whose floats have this size."""
    offsets = torch.arange(0, BAGS * BAG_SIZE, BAG_SIZE)
    ends = torch.cat([offsets, torch.tensor([BAGS * BAG_SIZE])])
    weight = torch.randn(num_rows, WIDTH) * 0.01
    stock = nn.EmbeddingBag(num_rows, WIDTH, mode="sum", _weight=weight)
    # A copy of its own, as torch allocates it: ours asks the system for large pages.
    plain = weight.clone()
    contenders = {"torch fp32": lambda ids: F.embedding_bag(ids, plain, offsets, mode="sum")}
    ours = PackedRows(Rows(weight, WIDTH))
    contenders["gossamer fp32"] = lambda ids: ours(Bags.of(ids, offsets))
    for name, how in {
        "gossamer int4": {"bits": 4},
        "gossamer int4 rows": {"bits": 4, "granularity": "row"},
        "gossamer int8": {"bits": 8},
        "gossamer int2": {"bits": 2},
    }.items():
        trained = gossamer.nn.EmbeddingBag.from_dense(stock, half_scale=True, **how).eval()
        packed = packed_table(trained)
        contenders[name] = lambda ids, packed=packed: packed(ids, offsets)
        if name == "gossamer int4":
            exported = export_bag_4bit(packed)
    bag = torch.ops.quantized.embedding_bag_4bit_rowwise_offsets
    contenders["torch 4-bit"] = lambda ids: bag(exported, ids, offsets)
    if has_fbgemm:
        theirs, small, to = fbgemm_int4(num_rows), torch.int32, ends.int()
        contenders["fbgemm int4"] = lambda ids: theirs(ids.to(small), to)
    with torch.no_grad():
        first = ids_of(num_rows)(0)
        expected = bag(exported, first, offsets)
        if not torch.equal(contenders["gossamer int4"](first), expected):
            raise SystemExit("int4: gossamer and torch disagree")
        return race(contenders, ids_of(num_rows), rounds)


def dlrm_with(model, how):
    """The same model and MLPs, with tables as `how` says; None: as they are."""
    if how is None:
        return model.eval()
    copy = gossamer.zoo.DLRM(NUMBERS, [1] * TABLES, width=WIDTH, bottom=(512, 256), top=(512, 256))
    small = {k: v for k, v in model.state_dict().items() if not k.startswith("tables.")}
    copy.load_state_dict(small, strict=False)
    for place, stock in enumerate(model.tables):
        copy.tables[place] = packed_table(gossamer.nn.EmbeddingBag.from_dense(stock, **how).eval())
    return copy.eval()


def whole(rounds):
    """Seconds of a whole DLRM by batch and form of its tables."""
    rows = GIB // (4 * WIDTH) // TABLES
    model = gossamer.zoo.DLRM(
        NUMBERS, [rows] * TABLES, width=WIDTH, bottom=(512, 256), top=(512, 256)
    )
    forms = {"torch fp32": None, "gossamer fp32": {"bits": None}}
    forms |= {f"gossamer int{bits}": {"bits": bits} for bits in (8, 4)}
    models = {name: dlrm_with(model, how) for name, how in forms.items()}
    found = {}
    with torch.no_grad():
        for batch in (1, 128, 2048):

            def given(number, batch=batch):
                generator = torch.Generator().manual_seed(number)
                ids = torch.randint(0, rows, (batch, TABLES), generator=generator)
                return torch.randn(batch, NUMBERS, generator=generator), ids

            contenders = {
                name: (lambda inputs, net=net: net(*inputs)) for name, net in models.items()
            }
            found[batch] = race(contenders, given, rounds * (10 if batch == 1 else 1))
    return found


def table_of(times, against):
    """Lines: fastest, median, and the fastest as a ratio to some contenders."""
    best = {name: min(found) for name, found in times.items()}
    lines = []
    for name, found in times.items():
        ratios = [f"{best[other] / best[name]:.2f}" if other in best else "-" for other in against]
        cells = [name, f"{1e3 * best[name]:.3f}", f"{1e3 * statistics.median(found):.3f}", *ratios]
        lines.append("| " + " | ".join(cells) + " |")
    head = ["", "fastest ms", "median ms", *(f"{other} / it" for other in against)]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=str(peers_dir()))
    parser.add_argument("--sizes", nargs="+", type=float, default=[0.1, 0.25, 1.0, 4.0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", choices=["training", "inference", "dlrm"])
    parser.add_argument("--lean", action="store_true", help="training: fbgemm and ours alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small-pages", action="store_true", help="refuse large ones to everyone")
    args = parser.parse_args()
    if args.small_pages and ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise SystemExit("--small-pages: the system does not know it")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    has_fbgemm, results = find_fbgemm(args.peers), {}
    if args.only in (None, "dlrm"):
        for batch, found in whole(args.rounds).items():
            results[f"dlrm {batch}"] = found
            if not args.json:
                print(f"\n## Whole DLRM, batch {batch}\n")
                print(table_of(found, ["torch fp32"]))
    for size in [] if args.only == "dlrm" else args.sizes:
        num_rows = int(size * GIB / (4 * WIDTH)) if size != 0.25 else 10**6
        if args.only != "inference":
            found = training(num_rows, args.rounds, has_fbgemm, size == 1.0, args.lean)
            results[f"training {size:g}"] = found
            if not args.json:
                print(f"\n## Training step, {num_rows} x {WIDTH} ({size:g} GiB)\n")
                print(table_of(found, ["fbgemm", "full table"] if size == 1.0 else ["fbgemm"]))
        if args.only != "training":
            found = inference(num_rows, args.rounds, has_fbgemm)
            results[f"inference {size:g}"] = found
            if not args.json:
                print(f"\n## Lookup, {num_rows} x {WIDTH} ({size:g} GiB in float32)\n")
                against = ["torch fp32", "torch 4-bit", "fbgemm int4"]
                print(table_of(found, against))
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
