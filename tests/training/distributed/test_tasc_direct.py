# SPDX-License-Identifier: Apache-2.0
"""Structured steps that take gradients at the parameters do what those through DDP's buckets do."""

from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from gossamer.errors import InputError
from gossamer.training.distributed.tasc import RowSGD, attach
from gossamer.training.distributed.tasc.blocks import BlockCut, BlockedParameter
from gossamer.training.distributed.tasc.direct import MeanGradient, why_not_direct
from gossamer.training.distributed.tasc.packet import Packet

STEPS = 9


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    store = dist.HashStore()
    dist.init_process_group(
        "gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=60)
    )
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    """Layers of each kind; one may be left out, two share their weight."""

    def __init__(self, extra):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.first, self.second = nn.Linear(6, 24), nn.Linear(24, 24)
        self.last = nn.Linear(24, 24, bias=False)
        self.last.weight = self.second.weight
        self.spare = nn.Linear(24, 4) if extra else None

    def forward(self, x, spare=False, reentrant=None):
        hidden = self.norm(self.conv(x)).mean((2, 3))
        hidden = torch.tanh(self.first(hidden))
        if reentrant is not None:
            hidden = checkpoint(self.second, hidden, use_reentrant=reentrant)
        else:
            hidden = self.second(hidden)
        hidden = self.last(hidden.relu())
        return self.spare(hidden) if spare else hidden


def batch(number):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(4, 2, 5, 5, generator=generator, dtype=torch.float64)


def started(*, through_buckets, dtype=torch.float64, extra=False, **ddp):
    torch.manual_seed(0)
    net = Net(extra).to(dtype)
    wrapped = DistributedDataParallel(net, find_unused_parameters=extra, **ddp)
    tasc = attach(
        wrapped, through_buckets=through_buckets, density=0.5, start=2, max_age=4, min_gain=0
    )
    return net, wrapped, tasc, RowSGD(net.parameters(), tasc, 0.1, momentum=0.9)


def trained(through_buckets, how, **ddp):
    """Weights, residuals, gradients and structures of a short training, done in some way."""
    net, wrapped, tasc, optimizer = started(through_buckets=through_buckets, **ddp)
    found = {}
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=how != "zeros")
        parts = 2 if how == "accumulated" else 1
        for part in range(parts):
            with wrapped.no_sync() if part < parts - 1 else nullcontext():
                x = batch(10 * step + part).to(net.first.weight.dtype)
                reentrant = False if how == "checkpoint" else None
                loss = wrapped(x, reentrant=reentrant)
                if how == "evaluated":  # between a forward and its backward pass
                    with torch.no_grad():
                        wrapped(x)
                loss.square().mean().backward()
        if how == "clipped":
            nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        if how == "noise":
            for number, param in enumerate(net.parameters()):
                torch.manual_seed(number)
                param.grad.add_(1e-3 * torch.randn_like(param.grad))
        for name, param in net.named_parameters():
            found[f"{step}.{name}"] = param.grad.clone()
        found[f"{step}.chosen"] = tasc.structure()
        optimizer.step()
    found |= {f"residual.{name}": held.clone() for name, held in tasc.residuals().items()}
    return found | {name: tensor.clone() for name, tensor in net.state_dict().items()}


@pytest.mark.parametrize(
    ("how", "ddp"),
    [
        ("plain", {}),
        ("plain", {"gradient_as_bucket_view": True}),
        ("plain", {"static_graph": True}),
        ("plain", {"dtype": torch.float32}),
        ("zeros", {}),
        ("zeros", {"gradient_as_bucket_view": True}),
        ("accumulated", {}),
        ("clipped", {}),
        ("noise", {}),
        ("checkpoint", {}),
        ("evaluated", {}),
    ],
)
def test_gradients_are_those_of_the_buckets(how, ddp):
    direct, buckets = trained(False, how, **ddp), trained(True, how, **ddp)
    assert direct.keys() == buckets.keys()
    assert direct[f"{STEPS - 1}.chosen"] is not None
    assert not direct[f"{STEPS - 1}.chosen"].all()
    for name, tensor in buckets.items():
        if tensor is None:
            assert direct[name] is None
        else:
            assert torch.equal(direct[name], tensor), name


def test_a_layer_that_is_left_out_now_and_then_loses_nothing():
    net, wrapped, tasc, _ = started(through_buckets=False, extra=True)
    names, params = zip(*net.named_parameters(), strict=True)
    came, sent = ([torch.zeros_like(param) for param in params] for _ in range(2))
    has_waited = False
    for step in range(12):
        spare = step % 4 == 1
        loss = net(batch(step), spare=spare).square().mean()
        gradients = torch.autograd.grad(loss, params, allow_unused=True)
        net.zero_grad()
        wrapped(batch(step), spare=spare).square().mean().backward()
        for index, (param, gradient) in enumerate(zip(params, gradients, strict=True)):
            came[index] += 0 if gradient is None else gradient
            sent[index] += 0 if param.grad is None else param.grad
        left = tasc.residuals()
        has_waited = has_waited or bool(left["spare.weight"].any())
    assert has_waited
    for name, total, gone in zip(names, came, sent, strict=True):
        waiting = left[name].view_as(total) if name in left else 0
        torch.testing.assert_close(gone + waiting, total, rtol=0, atol=1e-12)


def test_gradients_keep_their_memory_and_nothing_is_left_in_buckets():
    net, wrapped, tasc, _ = started(through_buckets=False)
    grads = []
    for step in range(5):
        net.zero_grad()
        wrapped(batch(step)).square().mean().backward()
        grads.append(net.first.weight.grad)
    assert grads[4] is grads[3]
    assert wrapped.require_backward_grad_sync
    _, rows, _ = tasc.sent(net.first.weight)
    left_out = torch.ones(24, dtype=torch.bool)
    left_out[rows] = False
    assert left_out.any()
    assert not grads[4][left_out].any()
    assert grads[4][rows].any()


def test_a_bad_number_gives_nan_and_loses_nothing():
    net, wrapped, tasc, _ = started(through_buckets=False)
    for step in range(4):
        net.zero_grad()
        wrapped(batch(step)).square().mean().backward()
    before = {name: held.clone() for name, held in tasc.residuals().items()}
    net.zero_grad()
    (wrapped(batch(4)).square().mean() * float("nan")).backward()
    assert all(torch.isnan(param.grad).all() for param in net.parameters())
    after = tasc.residuals()
    assert all(torch.equal(after[name], held) for name, held in before.items())
    net.zero_grad()
    wrapped(batch(5)).square().mean().backward()
    assert all(torch.isfinite(param.grad).all() for param in net.parameters())


def test_a_backward_pass_that_fails_loses_nothing_that_waited():
    net, wrapped, tasc, _ = started(through_buckets=False)
    for step in range(4):
        net.zero_grad()
        wrapped(batch(step)).square().mean().backward()
    before = {name: held.clone() for name, held in tasc.residuals().items()}

    def fail(_):
        raise RuntimeError("on purpose")

    net.zero_grad()
    handle = net.conv.weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        wrapped(batch(4)).square().mean().backward()
    handle.remove()
    after = tasc.residuals()
    assert torch.equal(after["conv.weight"], before["conv.weight"])
    # The layers behind had absorbed their gradients, and nothing was sent.
    assert (after["first.weight"] - before["first.weight"]).ne(0).any(1).all()
    assert after["first.weight"].ne(0).any(1).all()
    net.zero_grad()
    wrapped(batch(5)).square().mean().backward()
    assert all(torch.isfinite(param.grad).all() for param in net.parameters())


def test_gradients_that_come_too_late_are_an_error():
    net, wrapped, _, _ = started(through_buckets=False)
    for step in range(3):
        net.zero_grad()
        wrapped(batch(step)).square().mean().backward()
    loss = wrapped(batch(3)).square().mean()
    loss.backward(retain_graph=True)
    with pytest.raises(InputError, match="came after the exchange"):
        loss.backward()


def test_a_gradient_in_two_pieces_is_their_sum():
    cut = BlockCut(3, 4, 2)
    entry = BlockedParameter("w", 0, cut, 0, torch.zeros(()))
    part = Packet([(entry, torch.tensor([1]))]).parts[0]
    first, second = torch.randn(14), torch.randn(14)
    part.fill(first)
    part.fill(second, adds=True)
    total = first + second
    assert torch.equal(part.sent, total[4:8])
    assert torch.equal(part.tail, total[12:])
    torch.testing.assert_close(part.scores[0], total[:4].square().mean())


@pytest.mark.parametrize(
    "cut", [BlockCut(0, 1, 5), BlockCut(1, 1, 0), BlockCut(3, 4, 0), BlockCut(2, 3, 1)]
)
def test_a_mean_gradient_is_zero_but_for_what_came_last(cut):
    torch.manual_seed(0)
    entry = BlockedParameter("w", 0, cut, 0, torch.zeros(()))
    mean = MeanGradient(nn.Parameter(torch.zeros(cut.blocked + cut.tail)))
    for number in range(5):
        rows = torch.arange(cut.num_blocks)[number % 2 :: 2]
        part = Packet([(entry, rows)]).parts[0]
        part.sent.normal_()
        part.tail.normal_()
        mean.receive(part)
        expected = torch.zeros_like(mean.tensor)
        expected[: cut.blocked].view(-1, cut.block_size)[rows] = part.sent.view(-1, cut.block_size)
        expected[cut.blocked :] = part.tail
        assert torch.equal(mean.tensor, expected)
        if number == 2:
            mean.tensor.add_(1.0)
        if number == 3:
            mean.spoil()


def test_what_needs_buckets_is_named():
    def reason(module):
        return why_not_direct(DistributedDataParallel(module))

    assert reason(nn.Linear(2, 2)) is None
    assert "0 has sparse" in reason(nn.Sequential(nn.Embedding(3, 2, sparse=True)))


def test_sparse_gradients_go_through_buckets():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(30, 8, sparse=True), nn.Linear(8, 40))
    wrapped = DistributedDataParallel(net)
    tasc = attach(wrapped, density=0.5, start=2, min_gain=0)
    for _ in range(4):
        net.zero_grad()
        wrapped(torch.tensor([1, 2])).square().mean().backward()
    assert tasc.structure() is not None
    assert net[0].weight.grad.is_sparse
