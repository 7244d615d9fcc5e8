"""One small layer, network or step of every native family, each as a function of one input."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from gossamer.formats import SparseMatrix
from gossamer.nn import Conv2d, Linear
from gossamer.ops import Problem, kernel_list
from gossamer.ops.conv import ConvSettings, PackedConv
from gossamer.ops.conv.packed_conv import PackedInt8Conv
from gossamer.ops.engines import PackedNeurons
from gossamer.ops.engines import decoder as dec
from gossamer.ops.engines.conv_net import ConvStep, NetPlan, NetValue, PackedConvNet, PoolStep
from gossamer.ops.engines.decoder_session import NativeDecoder, NativeSession
from gossamer.ops.engines.encoder import EncoderBlock, Norm, PackedEncoder, Product
from gossamer.ops.linear.few import pack_few
from gossamer.ops.training.optimizer_passes import NativeMoment, absorb, adamw_step
from gossamer.patterns import NM, NMG, VNM, Block, Unstructured

KERNELS = tuple(kernel_list("linear"))
PANEL = KERNELS[0]
_PATTERNS = (
    *(Unstructured(), NM(2, 8), NM(4, 16), VNM(16, 8), NMG(2, 4, 4)),
    *(Block(16, 1), Block(4, 4), Block(1, 4)),
)
CONV = ConvSettings(4, 6, (3, 3), padding=(1, 1))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def kept(rows: int, columns: int, seed: int = 0, density: float = 0.4):
    """A random sparse weight, and the same with its zeros."""
    mask = random(rows, columns, seed=seed + 1).abs() < density
    weight = random(rows, columns, seed=seed) * mask
    return SparseMatrix.from_dense(weight, mask), weight


def weight_for(kernel, shape=(48, 80)):
    """A sparse weight that a kernel takes, and the dense one."""
    for pattern in _PATTERNS:
        padded = pattern.padded_shape(shape)
        weight = random(*padded, seed=3)
        mask = pattern.project(weight.abs(), pattern.fixed_density or 0.3)
        sparse = Problem(SparseMatrix.from_dense(weight, mask, pattern))
        if kernel.accepts(sparse):
            return sparse, weight * mask
    raise AssertionError(f"{kernel.name} takes none of the patterns")


def pack_linear(kernel):
    """A weight packed for a kernel, and the dense one."""
    sparse, weight = weight_for(kernel)
    return kernel.pack(sparse), weight


def pack_conv(kind=PackedConv):
    """A packed convolution 4 -> 6 of 3 x 3, and its dense weight."""
    matrix, weight = kept(*CONV.matrix_shape)
    return kind(matrix, CONV), weight.view(CONV.weight_shape)


def make_net(scales=None):
    """Two convolutions, a sum, a pool: images [N, 4, 12, 12] to the means of 6 channels."""
    values = (
        *(NetValue(4, (12, 12), False), NetValue(6, (12, 12), True)),
        *(NetValue(6, (6, 6), True), NetValue(6, (6, 6), True)),
    )
    first, second = kept(6, 36)[0], kept(6, 54, seed=5)[0]
    same = ConvSettings(6, 6, (3, 3), padding=(1, 1))
    pool = ConvSettings(6, 6, (3, 3), (2, 2), (1, 1), groups=1)
    steps = (
        ConvStep(0, 1, CONV, first, random(6), True),
        PoolStep(1, 2, pool),
        ConvStep(2, 3, same, second, None, True, added=2),
    )
    tops = None if scales is None else [scales] * len(values)
    return PackedConvNet(NetPlan(values, steps, 3, True), tops)


def make_encoder(precision="fp32"):
    """Two layers of 24 features in 3 heads."""

    def linear(rows, columns, seed):
        return Product(kept(rows, columns, seed)[0], random(rows, seed=seed))

    norm = Norm(torch.ones(24), torch.zeros(24))
    layers = [
        EncoderBlock(
            linear(72, 24, seed),
            linear(24, 24, seed + 1),
            linear(40, 24, seed + 2),
            linear(24, 40, seed + 3),
            norm,
            norm,
            1e-5,
            3,
            8,
            8**-0.5,
            "gelu",
        )
        for seed in (10, 20)
    ]
    return PackedEncoder(layers, 24, precision)


def make_neurons(rows="fp32"):
    """A gated block of 70 neurons and 24 features."""
    gate, up, down = (random(70, 24, seed=seed) for seed in (1, 2, 3))
    return PackedNeurons(gate, up, down, gate_bias_N=random(70) - 1, rows=rows)


def make_decoder():
    """Two layers, width 32, 4 heads, a context of 40 and 50 tokens."""
    shape = dec.DecoderShape(32, 4, 2, 8, 40, 50, 40)
    norm = dec.DecoderNorm(torch.ones(32), None, 1e-5)

    def layer(rows, columns, seed):
        return dec.PackedLayer(pack_few(kept(rows, columns, seed)[0]))

    blocks = [
        dec.DecoderBlock(
            layer(64, 32, seed),
            layer(32, 32, seed + 1),
            layer(80, 32, seed + 2),
            layer(32, 40, seed + 3),
            norms=(norm, None, norm, None, None, None),
            rotation=0,
            window=0,
            scale=8**-0.5,
        )
        for seed in (30, 40)
    ]
    head = layer(50, 32, 50)
    angles = torch.outer(torch.arange(40.0), torch.tensor([1.0, 0.5, 0.25, 0.125]))
    angles = [(angles.cos(), angles.sin())]
    return NativeDecoder(dec.decoder_plan(shape, head.few, blocks, norm, head, angles))


def compact_linear(mode="jit", in_features=80, out_features=48):
    """A compact layer."""
    dense = nn.Linear(in_features, out_features)
    with torch.no_grad():
        dense.weight.copy_(random(out_features, in_features))
        dense.bias.copy_(random(out_features, seed=2))
    mask = random(out_features, in_features, seed=1).abs() < 0.4
    return Linear.from_dense(dense, mask, mode=mode)


def compact_conv(mode="jit"):
    """A compact convolution 4 -> 6 of 3 x 3."""
    dense = CONV.build(True, torch.float32).to_empty(device="cpu")
    with torch.no_grad():
        dense.weight.copy_(random(*CONV.weight_shape))
        dense.bias.copy_(random(6, seed=2))
    return Conv2d.from_dense(dense, random(*CONV.matrix_shape, seed=1).abs() < 0.4, mode=mode)


def backward(layer, x):
    """All gradients of a layer at x, as one vector."""
    x = x.clone().requires_grad_()
    parameters = [x, *layer.parameters()]
    grads = torch.autograd.grad(layer(x).square().sum(), parameters)
    return torch.cat([grad.reshape(-1) for grad in grads])


def optimizer_step(number=3):
    """What one native step of AdamW leaves."""
    weight, mean, square = random(700), torch.zeros(700), torch.zeros(700)
    settings = (1e-2, 0.9, 0.99, 1e-8, 0.1)
    adamw_step(
        weight,
        None,
        random(700, seed=number),
        NativeMoment(mean),
        NativeMoment(square),
        settings,
        number,
    )
    return torch.cat([weight, mean, square])


def absorbed():
    """What one native absorption leaves."""
    held, fresh, scores = random(5, 90), torch.empty(5), torch.empty(5)
    absorb(random(5, 90, seed=1), held, fresh, scores)
    return torch.cat([held.reshape(-1), fresh, scores])


def is_partly_torch(name: str) -> bool:
    """Whether torch computes between the native steps of a call: its failures are its own."""
    is_packing = name.startswith("pack ") and name != "pack panel"
    mixed = ("compact conv jit", "compact conv resident", "compact linear resident")
    own = ("dense weight", "adamw", "absorb")
    return is_packing or name in mixed or name in own or name.endswith("backward")


def calls() -> dict[str, Callable[[], torch.Tensor]]:
    """Calls of every family on weights that are packed already, and the packing itself."""
    made: dict[str, Callable[[], torch.Tensor]] = {}
    for kernel in KERNELS:
        sparse, weight = weight_for(kernel)
        run = kernel.pack(sparse)
        x, bias = random(70, weight.shape[1]), random(weight.shape[0])
        made[f"linear {kernel.name}"] = lambda run=run, x=x, bias=bias: run(x, bias, "gelu")
        made[f"pack {kernel.name}"] = lambda kernel=kernel, sparse=sparse, x=x: kernel.pack(sparse)(
            x
        )
    images, tokens, hidden = random(5, 4, 12, 12), random(130, 80), random(150, 24)
    for name, kind in (("conv", PackedConv), ("conv int8", PackedInt8Conv)):
        conv, _ = pack_conv(kind)
        made[name] = lambda conv=conv: conv(images, None, "relu")
        made[f"pack {name}"] = lambda kind=kind: pack_conv(kind)[0](images)
    for name, scale in (("net", None), ("net int8", 4.0)):
        net = make_net(scale)
        made[name] = lambda net=net: net(images)
        made[f"pack {name}"] = lambda scale=scale: make_net(scale)(images)
    for name in ("fp32", "int8"):
        encoder = make_encoder(name)
        made[f"encoder {name}"] = lambda encoder=encoder: encoder(hidden, [70, 64, 16])
        made[f"pack encoder {name}"] = lambda name=name: make_encoder(name)(hidden, [70, 64, 16])
    neurons = make_neurons()
    few, known = hidden[:3], torch.arange(0, 70, 3)
    made["neurons"] = lambda: neurons(few)[0]
    made["neurons known"] = lambda: neurons(few, known)[0]
    made["pack neurons int8"] = lambda: make_neurons(rows="int8")(few)[0]
    made["pack neurons"] = lambda: make_neurons(rows="bf16")(few)[0]
    decoder, ids = make_decoder(), np.arange(30, dtype=np.int32)
    made["decoder"] = lambda: NativeSession(decoder).step(ids, every=True)
    made["pack decoder"] = lambda: NativeSession(make_decoder()).step(ids)
    for mode in ("jit", "resident", "kernel"):
        linear, conv2d = compact_linear(mode), compact_conv(mode)
        for name, layer, x in (("linear", linear, tokens), ("conv", conv2d, images)):
            made[f"compact {name} {mode}"] = lambda layer=layer, x=x: layer(x)
            made[f"compact {name} {mode} backward"] = lambda layer=layer, x=x: backward(layer, x)
    made["dense weight"] = lambda: compact_linear().dense_weight()
    panel, _ = pack_linear(PANEL)
    made["unpack"] = lambda: panel.unpack().values
    made["adamw"] = optimizer_step
    made["absorb"] = absorbed
    return made
