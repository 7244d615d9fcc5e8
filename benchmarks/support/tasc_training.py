# SPDX-License-Identifier: Apache-2.0
"""Training on Fashion-MNIST by W ranks in one process, with each way to exchange gradients.

Every rank has gradients of its own batch and residuals of its own; what they would exchange is
added up here. That TASC does the same on real ranks is a test.

Legend: W ranks, B samples of a rank.
"""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from gossamer.testing.simulated_ranks import GradientBucket, SimulatedRank, SimulatedRanks
from gossamer.training.distributed.tasc import CurvatureProbe, RowAdamW, RowSGD

BATCH = 32
RATES = {"momentum": 0.05, "adam": 1e-3}
METHODS = ("none", "bf16", "powersgd", "topk", "random", "tasc", "tasc+trace")
START = 100


def mlp(width):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 10),
    )  # fmt: skip


class _NoTasc:
    """A dense stand-in for row optimizers: everything is sent in every step."""

    def sent(self, param):
        return None


class Mean:
    """Gradients are averaged, in fp32 or bf16."""

    def __init__(self, net, num_ranks, density, dtype=torch.float32):
        self._dtype = dtype

    def reduce(self, grads_W):
        """The mean of all ranks' gradients [W, ...]."""
        total = [g[0].to(self._dtype) / len(g) for g in grads_W]
        for rank in range(1, len(grads_W[0])):
            total = [
                t + g[rank].to(self._dtype) / len(g) for t, g in zip(total, grads_W, strict=True)
            ]
        return [t.float() for t in total]


class PowerSGD:
    """The stock hook on the mean gradient: it is linear, so its residuals add up to one.

    (Vogels et al., arXiv 1905.13727: the algorithm on W workers equals that on their mean.)
    """

    def __init__(self, net, num_ranks, density):
        self._params = list(net.parameters())
        self._state = powerSGD_hook.PowerSGDState(
            dist.group.WORLD, matrix_approximation_rank=4, start_powerSGD_iter=START
        )
        self.union = []

    def reduce(self, grads_W):
        """What all ranks get."""
        bucket = GradientBucket(self._params, [g.mean(0) for g in grads_W])
        flat = powerSGD_hook.powerSGD_hook(self._state, bucket).wait()
        if self._state.total_numel_before_compression:
            self.union = [1 / self._state.compression_stats()[0]]
        pieces = flat.split([p.numel() for p in self._params])
        return [piece.view(p.shape) for piece, p in zip(pieces, self._params, strict=True)]


class TopK:
    """Each rank sends its own largest entries of a parameter; the rest stays in its residual."""

    def __init__(self, net, num_ranks, density):
        self._density, self._held, self._step = density, None, 0
        self.union = []

    def reduce(self, grads_W):
        """The mean of what the ranks sent."""
        self._step += 1
        if self._step <= START:
            return [g.mean(0) for g in grads_W]
        self._held = self._held or [torch.zeros_like(g) for g in grads_W]
        means, touched, total = [], 0, 0
        for held, grad_W in zip(self._held, grads_W, strict=True):
            held += grad_W
            flat = held.flatten(1)
            k = max(1, round(self._density * flat.shape[1]))
            index = flat.abs().topk(k, dim=1).indices
            sent = torch.zeros_like(flat).scatter_(1, index, flat.gather(1, index))
            flat.scatter_(1, index, 0.0)
            means.append(sent.mean(0).view(grad_W.shape[1:]))
            hit = torch.zeros(flat.shape[1], dtype=torch.bool)
            hit[index.reshape(-1)] = True
            touched, total = touched + int(hit.sum()), total + hit.numel()
        self.union.append(touched / total)
        return means


class Structured:
    """TASC, or the same with scores that are drawn instead of measured."""

    def __init__(self, net, num_ranks, density, drawn=False, max_age=100):
        self.ranks = SimulatedRanks(net, num_ranks, density=density, start=START, max_age=max_age)
        self._generator = torch.Generator().manual_seed(0) if drawn else None
        self.union = []

    @property
    def tasc(self) -> SimulatedRank:
        """One of the ranks; their structure is the same."""
        return self.ranks.ranks[0]

    def reduce(self, grads_W):
        """The mean of the blocks that were sent."""
        if self._generator is not None:
            for rank in self.ranks.ranks:
                rank._settle()
            drawn = torch.rand(self.tasc._scores_R.shape, generator=self._generator).double()
            for rank in self.ranks.ranks:
                rank._scores_R.copy_(drawn)
        gradients = [[g[rank] for g in grads_W] for rank in range(len(grads_W[0]))]
        means = self.ranks.reduce(gradients)
        chosen = self.tasc.structure()
        if chosen is not None:
            sent = int(self.tasc._sizes_R[chosen].sum())
            always = self.tasc._total - int(self.tasc._sizes_R.sum()) + len(chosen)
            self.union.append((sent + always) / self.tasc._total)
        return means


def exchange_of(method, net, num_ranks, density):
    makers = {
        "none": lambda: Mean(net, num_ranks, density),
        "bf16": lambda: Mean(net, num_ranks, density, torch.bfloat16),
        "powersgd": lambda: PowerSGD(net, num_ranks, density),
        "topk": lambda: TopK(net, num_ranks, density),
        "random": lambda: Structured(net, num_ranks, density, drawn=True),
        "tasc": lambda: Structured(net, num_ranks, density),
        "tasc+trace": lambda: Structured(net, num_ranks, density),
    }
    return makers[method]()


def train(data, *, method, optimizer, seed, steps, num_ranks, density, width=256, probe_every=500):
    """Accuracy in percent, training loss, and the density of what crossed the network."""
    torch.manual_seed(seed)
    net = mlp(width)
    exchange = exchange_of(method, net, num_ranks, density)
    tasc = exchange.tasc if isinstance(exchange, Structured) else _NoTasc()
    maker = {
        "momentum": lambda: RowSGD(net.parameters(), tasc, RATES["momentum"], momentum=0.9),
        "adam": lambda: RowAdamW(net.parameters(), tasc, RATES["adam"], weight_decay=0.0),
    }
    stepper = maker[optimizer]()
    names = [name for name, _ in net.named_parameters()]

    def loss_of(params, x, y):
        return cross_entropy(functional_call(net, params, (x,)), y)

    per_rank = vmap(grad(loss_of), (None, 0, 0))
    generator = torch.Generator().manual_seed(1000 + seed)
    for step in range(steps):
        if method == "tasc+trace" and step >= START and (step - START) % probe_every == 0:
            _probe(exchange, net, data, first=step == START)
        rate = RATES[optimizer] * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in stepper.param_groups:
            group["lr"] = rate
        index = torch.randint(len(data.x_train), (num_ranks, BATCH), generator=generator)
        params = {name: p.detach() for name, p in net.named_parameters()}
        grads = per_rank(params, data.x_train[index], data.y_train[index])
        means = exchange.reduce([grads[name] for name in names])
        for param, mean in zip(net.parameters(), means, strict=True):
            param.grad = mean
        stepper.step()
    with torch.no_grad():
        right = (net(data.x_test).argmax(1) == data.y_test).float().mean()
        loss = cross_entropy(net(data.x_train[:10000]), data.y_train[:10000])
    union = getattr(exchange, "union", [])
    return {
        "accuracy": 100 * float(right),
        "train_loss": float(loss),
        "density": sum(union) / len(union) if union else 1.0,
        "most_dense": max(union, default=1.0),
    }


def _probe(exchange, net, data, first):
    """Traces of the Hessian on 256 samples; all simulated ranks get the same."""
    for rank in exchange.ranks.ranks:
        rank._settle()
    if not hasattr(exchange, "probe"):
        exchange.probe = CurvatureProbe(exchange.tasc, net)
    loss = cross_entropy(net(data.x_train[:256]), data.y_train[:256])
    traces = exchange.probe.measure(loss, num_probes=4 if first else 1)
    for rank in exchange.ranks.ranks:
        rank.set_curvature(traces)
