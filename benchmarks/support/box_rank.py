# SPDX-License-Identifier: Apache-2.0
"""One rank of a case of `plan_box.py`: trains a pruned GPT, dense or compact, under a limit."""

import ctypes
import json
import re
import resource
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

import gossamer
from gossamer.nn.layers import MaskedLinear
from gossamer.nn.surgery import replace_module
from gossamer.training.distributed.pipeline import LayerPipeline, PipelineSettings
from gossamer.training.distributed.placement.gradients import average, replicated
from gossamer.zoo import GPT

VOCABULARY = 256
WARM_UP = 1


def build(width, layers, context, device="cpu"):
    """A GPT on bytes whose head is its embedding, so that almost everything is pruned."""
    with torch.device(device):
        return GPT(
            VOCABULARY,
            width=width,
            num_heads=max(1, width // 64),
            num_layers=layers,
            context=context,
            tied=True,
        )


def pruned(model, sparsity, *, is_compact):
    """The same masks and weights, compact or as dense tensors with zeros (SAMO's comparison)."""
    gossamer.sparsify(model, sparsity=sparsity)
    if is_compact:
        gossamer.compact(model, mode="kernel")
        return model
    for layer in [m for m in model.modules() if isinstance(m, MaskedLinear)]:
        dense = layer.to_dense()
        dense.weight.holds_zeros = True
        replace_module(model, layer, dense)
    return model


def keep_zeros(parameters):
    """No gradient where a dense weight is pruned: it stays 0, as if it were not there."""
    for parameter in parameters:
        if getattr(parameter, "holds_zeros", False):
            parameter.grad.mul_(parameter.detach() != 0)


def run(layout, shape, *, batch, steps, sparsity, room):
    """Train and print seconds, losses and the peak of memory.

    Args:
        layout: "dense fp32" or "fp32", data, pipeline, samples of a microbatch.
        shape: width, layers and context of the model.
        batch: samples of all ranks.
        steps: to be timed, behind one that is not.
        sparsity: of the pruned layers.
        room: bytes that training may take beside what the process has before it; None is no limit.
    """
    state, data, pipeline, microbatch = layout
    dist.init_process_group("gloo")
    load_libraries()
    before, data_before = status("VmRSS"), status("VmData")
    torch.manual_seed(0)
    model = pruned(build(*shape), sparsity, is_compact=state == "fp32")
    ids = torch.randint(VOCABULARY, (WARM_UP + steps, batch, shape[-1] + 1))
    step = stepper(model, data, pipeline, microbatch, batch)
    # Nobody else may hold the model: a pipeline lets go of what is not its own.
    del model
    forget_peak()
    if room is not None:
        # Resident memory cannot be limited without cgroups; private pages can.
        limit = data_before + int(room)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    seconds, losses = [], []
    for samples in ids:
        dist.barrier()
        began = time.perf_counter()
        loss = step(samples)
        dist.barrier()
        seconds.append(time.perf_counter() - began)
        mean = torch.tensor(loss / dist.get_world_size(), dtype=torch.float64)
        dist.all_reduce(mean)
        losses.append(mean.item())
    found = {
        "seconds": seconds[WARM_UP:],
        "losses": losses,
        "peak": status("VmHWM"),
        "data": status("VmData") - data_before,
        "before_model": before,
    }
    print(json.dumps(found), flush=True)
    dist.barrier()
    # DDP holds the group: if it were the last to go, gloo's threads and Python would lock each
    # other out.
    del step
    dist.destroy_process_group()


def stepper(model, data, pipeline, microbatch, batch):
    """A function that takes one optimizer step of this rank and returns its loss."""
    here, share = dist.get_rank(), batch // data
    part = slice(here // pipeline * share, (here // pipeline + 1) * share)
    if pipeline == 1:
        return replica(replicated(model, dist.group.WORLD, "full"), part, microbatch)
    world = torch.arange(data * pipeline).view(data, pipeline)
    rows = [dist.new_group(row.tolist()) for row in world]
    columns = [dist.new_group(column.tolist()) for column in world.T]
    settings = PipelineSettings(num_microbatches=share // microbatch, schedule="1f1b")
    example = torch.zeros(microbatch, model.context, dtype=torch.int64)
    pipe = LayerPipeline(model, loss_of, (example,), settings, group=rows[here // pipeline])
    optimizer = torch.optim.AdamW(pipe.parameters())

    def step(samples):
        own = samples[part]
        loss = pipe.step(own[:, :-1], target=own[:, 1:])
        if data > 1:
            average(pipe.parameters(), columns[here % pipeline], "full")
        keep_zeros(pipe.parameters())
        optimizer.step()
        return loss

    return step


def replica(model, part, microbatch):
    """Of a model in DDP."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step(samples):
        optimizer.zero_grad()
        pieces = samples[part].split(microbatch)
        total = 0.0
        for number, piece in enumerate(pieces):
            model.require_backward_grad_sync = number == len(pieces) - 1
            loss = loss_of(model(piece[:, :-1]), piece[:, 1:]) / len(pieces)
            loss.backward()
            total += loss.item()
        keep_zeros(model.parameters())
        optimizer.step()
        return total

    return step


def loss_of(logits, target):
    """Of the next byte, mean over all."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten())


def load_libraries():
    """Train something tiny: what comes with a first step belongs to the process, not to a model."""
    for is_compact in (False, True):
        model = pruned(build(64, 1, 8), 0.5, is_compact=is_compact)
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.zeros(1, 9, dtype=torch.int64)
        loss_of(model(ids[:, :-1]), ids[:, 1:]).backward()
        keep_zeros(model.parameters())
        optimizer.step()


def forget_peak():
    """Freed pages of building and pruning go back, and the peak starts anew."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def status(name):
    """A number of bytes that the kernel knows of this process."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+)", text)[1]) * 1024
