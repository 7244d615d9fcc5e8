"""Sparse convolutions against dense `F.conv2d` (oneDNN): fp32, interleaved, minimum of many.

    python benchmarks/conv.py [--step | --int8] [--json] [--threads 1] [--seconds 0.25]

Shapes of ResNet-20/56 on CIFAR and of ResNet-50 on ImageNet. Prints every case, losses included,
and per kind of kernel the worst and the median ratio. With --step forward and backward of
`gossamer.nn.Conv2d` in mode kernel run against mode jit and against nn.Conv2d instead. With --int8
the int8 kernel runs, also against the fp32 one and torch's dense quantised convolution. The
allocator is told to keep freed memory: otherwise page faults of new outputs, the same on both
sides, hide large layers.
"""

import argparse
import ctypes
import json
import os
import statistics
import sys
from dataclasses import asdict, dataclass

import torch

from gossamer.formats import SparseMatrix
from gossamer.nn import Conv2d
from gossamer.ops.conv import ConvSettings, PackedConv
from gossamer.ops.conv.packed_conv import PackedInt8Conv
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.ops.timing import duel
from gossamer.running.bench import ceilings

# (channels in, channels out, kernel, image, stride)
CIFAR = [(16, 16, 3, 32, 1), (16, 32, 3, 32, 2), (32, 32, 3, 16, 1), (64, 64, 3, 8, 1)]
IMAGENET = [
    *[(64, 64, 1, 56, 1), (64, 64, 3, 56, 1), (64, 256, 1, 56, 1), (256, 64, 1, 56, 1)],
    *[(256, 512, 1, 56, 2), (128, 128, 3, 56, 2), (128, 128, 3, 28, 1), (128, 512, 1, 28, 1)],
    *[(512, 128, 1, 28, 1), (256, 256, 3, 14, 1), (256, 1024, 1, 14, 1), (1024, 256, 1, 14, 1)],
    *[(512, 512, 3, 7, 1), (512, 2048, 1, 7, 1), (2048, 512, 1, 7, 1)],
]
GOAL = {1: 3.0, 3: 2.0}


@dataclass
class Row:
    """One layer at one batch size; times in microseconds, rates in GFLOP/s.

    Of a step the rates are those of its three products, and jit_us is that of mode jit. Of int8,
    fp32_us is the sparse fp32 kernel and quantized_us torch's convolution of images quantised
    before, with a quantised output.
    """

    channels: int
    rows: int
    kernel: int
    image: int
    stride: int
    batch: int
    dense_us: float
    sparse_us: float
    dense_gflops: float
    kept_gflops: float
    ceiling_fraction: float
    jit_us: float | None = None
    fp32_us: float | None = None
    quantized_us: float | None = None

    @property
    def ratio(self):
        """How many times faster sparse is."""
        return self.dense_us / self.sparse_us


def keep_freed_memory():
    """Neither map large blocks nor give memory back (glibc; elsewhere nothing happens)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_max = -1, -4
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_max, 0)


def make(case, batch, sparsity):
    """Settings, weight, mask and images of a case."""
    channels, rows, kernel, image, stride = case
    settings = ConvSettings(
        channels, rows, (kernel,) * 2, (stride,) * 2, padding=(kernel // 2,) * 2
    )
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(settings.matrix_shape, generator=generator) >= sparsity
    matrix = torch.randn(settings.matrix_shape, generator=generator) * mask
    return settings, matrix, mask, torch.randn(batch, channels, image, image)


def bench_forward(case, batch, sparsity, seconds, ceiling):
    settings, matrix, mask, x = make(case, batch, sparsity)
    weight, bias = matrix.view(settings.weight_shape), torch.randn(settings.out_channels)
    packed = PackedConv(SparseMatrix.from_dense(matrix, mask), settings)
    with torch.inference_mode():
        times = duel(
            lambda: settings.apply(x, weight, bias),
            lambda: packed(x, bias),
            budget_seconds=seconds,
        )
    return row_of(case, batch, times, mask, 1, settings, ceiling)


def bench_int8(case, batch, sparsity, seconds, ceiling):
    settings, matrix, mask, x = make(case, batch, sparsity)
    weight, bias = matrix.view(settings.weight_shape), torch.randn(settings.out_channels)
    arguments = (SparseMatrix.from_dense(matrix, mask), settings)
    fp32, int8 = PackedConv(*arguments), PackedInt8Conv(*arguments)
    stock = quantized(settings, weight, bias)
    q = torch.quantize_per_tensor(x, 0.05, 64, torch.quint8)
    with torch.inference_mode():
        times, against_fp32, against_stock = (
            duel(other, lambda: int8(x, bias), budget_seconds=seconds)
            for other in (
                lambda: settings.apply(x, weight, bias),
                lambda: fp32(x, bias),
                lambda: stock(q),
            )
        )
    row = row_of(case, batch, times, mask, 1, settings, ceiling)
    row.fp32_us = against_fp32.ratio * row.sparse_us
    row.quantized_us = against_stock.ratio * row.sparse_us
    return row


def quantized(settings, weight, bias):
    """Torch's own int8 convolution with one scale per output channel."""
    channels = (settings.in_channels, settings.out_channels, settings.kernel_size)
    stock = torch.ao.nn.quantized.Conv2d(*channels, settings.stride, settings.padding)
    scales = weight.flatten(1).abs().amax(1).clamp_min(1e-6) / 127
    zeros = torch.zeros_like(scales, dtype=torch.long)
    stock.set_weight_bias(
        torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8), bias
    )
    stock.scale, stock.zero_point = 0.1, 64
    return stock


def bench_step(case, batch, sparsity, seconds, ceiling):
    settings, matrix, mask, x = make(case, batch, sparsity)
    stock = settings.build(has_bias=True, dtype=torch.float32).to_empty(device="cpu")
    with torch.no_grad():
        stock.weight.copy_(matrix.view(settings.weight_shape))
        stock.bias.zero_()
    kernel, jit = (Conv2d.from_dense(stock, mask, mode=mode) for mode in ("kernel", "jit"))
    x.requires_grad_()
    grad = torch.randn(stock(x).shape)

    def step(layer):
        return lambda: torch.autograd.grad(layer(x), (x, *layer.parameters()), grad)

    times = duel(step(stock), step(kernel), budget_seconds=seconds)
    against_jit = duel(step(jit), step(kernel), budget_seconds=seconds)
    row = row_of(case, batch, times, mask, 3, settings, ceiling)
    row.jit_us = against_jit.ratio * row.sparse_us
    return row


def row_of(case, batch, times, mask, products, settings, ceiling):
    height, width = settings.out_size(case[3:4] * 2)
    work = 2e-3 * products * batch * height * width
    kept = work * int(mask.sum()) / times.second_us
    dense = work * mask.numel() / times.first_us
    return Row(*case, batch, times.first_us, times.second_us, dense, kept, kept / ceiling)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--step", action="store_true", help="forward and backward")
    kinds.add_argument("--int8", action="store_true", help="the int8 kernel")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.25, help="time per case")
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    ceiling = arguments.threads * ceilings()["int8_panel" if arguments.int8 else "panel"]
    bench = bench_step if arguments.step else bench_int8 if arguments.int8 else bench_forward
    rows = []
    for batch in arguments.batch:
        for case in (*CIFAR, *IMAGENET):
            row = bench(case, batch, arguments.sparsity, arguments.seconds, ceiling)
            rows.append(row)
            peers = {"jit": row.jit_us, "fp32": row.fp32_us, "torch int8": row.quantized_us}
            others = "".join(
                f" {us / row.sparse_us:6.2f}x {name}" for name, us in peers.items() if us
            )
            print(
                f"batch {batch:2d} {row.channels:4d} -> {row.rows:4d} {row.kernel}x{row.kernel}"
                f" {row.image:2d}x{row.image:<2d} stride {row.stride}: {row.ratio:6.2f}x dense"
                f"{others}  {row.kept_gflops:5.1f} GFLOP/s kept"
                f" ({row.ceiling_fraction:.0%} of ceiling"
                f" {ceiling:.0f}), dense {row.dense_gflops:.0f}",
                file=sys.stderr,
                flush=True,
            )
    summary = [summarise(rows, kernel, batch) for batch in arguments.batch for kernel in GOAL]
    document = {
        "cpu": cpu_name(),
        "kernels": active_kernels(),
        "torch": torch.__version__,
        "threads": arguments.threads,
        "sparsity": arguments.sparsity,
        "step": arguments.step,
        "int8": arguments.int8,
        "load": os.getloadavg()[0],
        "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
        "summary": summary,
    }
    if arguments.json:
        print(json.dumps(document, indent=1))
        return
    print(f"\n{document['cpu']}, {document['kernels']}, {arguments.threads} thread(s),", end=" ")
    print(f"{arguments.sparsity:.0%} sparse, load {document['load']:.1f}")
    has_goal = not (arguments.step or arguments.int8)
    print(f"batch  kernel  worst  median   best{'  goal at 90 %' if has_goal else ''}")
    for line in summary:
        goal = f"  {line['goal']:.1f}" if has_goal else ""
        print(
            f"{line['batch']:5d}  {line['kernel']}x{line['kernel']:<4d} {line['worst']:6.2f}"
            f" {line['median']:7.2f} {line['best']:6.2f}{goal}"
        )


def summarise(rows, kernel, batch):
    ratios = sorted(row.ratio for row in rows if (row.kernel, row.batch) == (kernel, batch))
    return {
        "kernel": kernel,
        "batch": batch,
        "worst": ratios[0],
        "median": statistics.median(ratios),
        "best": ratios[-1],
        "goal": GOAL[kernel],
    }


if __name__ == "__main__":
    main()
