# SPDX-License-Identifier: Apache-2.0
"""How TASC joins a DDP model: as its communication hook, and past its buckets where that works.

Structured steps take gradients where autograd leaves them.

DDP copies every gradient into a bucket and back: two passes over memory for numbers of which 5 %
travel. Here DDP is told before a structured step that nothing is to be reduced, as its `no_sync`
does; each gradient is absorbed while it is in cache, and then it is gone. When the backward pass
ends one packet travels. Dense steps, the first copy of the weights and buffers stay DDP's.

A parameter that no rank has used gets a gradient, too: what waits of it, or zeros. (Buckets lose
what is sent of such a parameter: DDP leaves its `.grad` alone.)
"""

from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gossamer.errors import InputError
from gossamer.training.distributed.groups import keep_groups
from gossamer.training.distributed.tasc.exchange import Tasc
from gossamer.training.distributed.tasc.packet import Packet, PacketPart


def attach(ddp: DistributedDataParallel, *, through_buckets: bool = False, **settings: Any) -> Tasc:
    """Let a DDP model communicate by TASC; before its first backward. Settings are those of `Tasc`.

    `static_graph`, `gradient_as_bucket_view` and `no_sync` work as with stock DDP.

    Args:
        ddp: the model.
        through_buckets: structured steps go through DDP's buckets, as they do anyway where DDP has
            sparse gradients or casts, or parameters are not in the memory of the CPU.
        settings: of `Tasc`.
    """
    tasc = Tasc(ddp.module, group=ddp.process_group, **settings)
    join(ddp, tasc, through_buckets=through_buckets)
    return tasc


def join(ddp: DistributedDataParallel, tasc: Tasc, *, through_buckets: bool = False) -> None:
    """What `attach` does, for a Tasc that is there already."""
    keep_groups()
    ddp.register_comm_hook(tasc, tasc_hook)
    if not through_buckets and why_not_direct(ddp) is None:
        DirectSteps(ddp, tasc)
        tasc.past_buckets = True


def tasc_hook(state: Tasc, bucket: GradBucket) -> Future[torch.Tensor]:
    """The communication hook of DDP; `attach` registers it."""
    return state.reduce(bucket)


def why_not_direct(ddp: DistributedDataParallel) -> str | None:
    """What of a DDP model needs its buckets; None if nothing does."""
    if any(param.device.type != "cpu" for param in ddp.parameters()):
        return "a parameter is not in the memory of the CPU"
    for name, module in ddp.module.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            return f"{name} has sparse gradients"
    if ddp.mixed_precision is not None:
        return "DDP casts parameters"
    return None


class DirectSteps:
    """Hooks on a DDP model and its parameters that carry out the structured steps of `tasc`.

    Args:
        ddp: the model; TASC is its communication hook in dense steps.
        tasc: what decides.
    """

    def __init__(self, ddp: DistributedDataParallel, tasc: Tasc) -> None:
        self._ddp, self._tasc = ddp, tasc
        self._means: dict[torch.Tensor, MeanGradient] = {}
        self._lowered = False  # DDP's flag, while a forward pass runs
        self._armed = False  # the next backward pass belongs to a structured step
        self._done = False  # it has ended
        self._packets: list[Packet] = []
        self._parts: dict[torch.Tensor, PacketPart] = {}
        self._filled: set[torch.Tensor] = set()
        ddp.register_forward_pre_hook(self._before_forward)
        ddp.register_forward_hook(self._after_forward, always_call=True)
        for param in ddp.module.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(self._take)

    def _before_forward(self, *_: Any) -> None:
        if not torch.is_grad_enabled():
            return
        self._armed = self._ddp.require_backward_grad_sync and self._tasc.is_structured_next
        self._done = False
        self._packets = []  # of a backward pass that did not end
        if self._armed:
            self._lowered, self._ddp.require_backward_grad_sync = True, False

    def _after_forward(self, *_: Any) -> None:
        if self._lowered:
            self._lowered, self._ddp.require_backward_grad_sync = False, True
            self._ddp.require_forward_param_sync = True  # buffers are still sent before a forward

    def _take(self, param: torch.Tensor) -> None:
        """Autograd has left a gradient at a parameter."""
        if self._done:
            raise InputError(
                "TASC: a gradient came after the exchange of its step. Each backward pass needs a"
                " forward pass of the DDP model before it, and checkpoints use_reentrant=False;"
                " through_buckets=True leaves such cases to DDP."
            )
        if not self._armed or param.grad is None:
            return
        if not self._packets:
            self._packets = self._tasc.open_packets()
            parts = [part for packet in self._packets for part in packet.parts]
            self._parts = {part.entry.param: part for part in parts}
            self._filled = set()
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._parts[param].fill(param.grad.contiguous().view(-1), adds=param in self._filled)
        self._filled.add(param)
        param.grad = None

    def _finish(self) -> None:
        """The backward pass has ended."""
        packets, self._packets = self._packets, []
        self._armed, self._done = False, True
        for param, part in self._parts.items():
            if param not in self._filled:
                part.fill(None)
        arrived = self._tasc.exchange(packets)
        for param, part in self._parts.items():
            mean = self._means.get(param) or self._means.setdefault(param, MeanGradient(param))
            if arrived:
                mean.receive(part)
            else:
                mean.spoil()
            param.grad = mean.tensor


class MeanGradient:
    """What a parameter gets for its `.grad`, always the same tensor.

    Whoever changes it in place (clips it, lets autograd add to it) is noticed by its version.

    Args:
        param: whose gradient it is.
    """

    def __init__(self, param: torch.Tensor) -> None:
        self.tensor = torch.zeros_like(param.detach(), memory_format=torch.contiguous_format)
        self._version = self.tensor._version
        self._rows: torch.Tensor | None = None

    def receive(self, part: PacketPart) -> None:
        """Take over what came back, and zeros elsewhere."""
        cut, flat = part.entry.cut, self.tensor.view(-1)
        if self.tensor._version != self._version:
            self.tensor.zero_()
        elif self._rows is not None and len(self._rows):
            cut.in_blocks(flat).index_fill_(0, self._rows, 0)
        part.write(flat)
        self._rows, self._version = part.rows, self.tensor._version

    def spoil(self) -> None:
        """Say that a number somewhere was not finite."""
        self.tensor.fill_(float("nan"))
