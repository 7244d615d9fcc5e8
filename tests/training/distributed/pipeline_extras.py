# SPDX-License-Identifier: Apache-2.0
"""What a pipeline meets beside plain batches; every function runs on all ranks of its group."""

import copy

import pytest
import torch
import torch.distributed as dist
from pipeline_worker import batch_of, build, loss_of
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

from gossamer.errors import InputError
from gossamer.training.distributed.pipeline import LayerPipeline, PipelineSettings
from gossamer.zoo import TinyEncoder


def gradients_equal(pipeline, model):
    names = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in pipeline.named_parameters():
        torch.testing.assert_close(parameter.grad, names[name].grad, rtol=0, atol=1e-12)


def shapes_change_and_statistics_stay(group):
    """Batches of other shapes; batch norms see the microbatches and nothing else."""
    torch.manual_seed(0)
    layers = (nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
    model = nn.Sequential(*layers).double()
    alone = copy.deepcopy(model)
    settings = PipelineSettings(2, "message-driven")
    pipeline = LayerPipeline(model, mse_loss, (torch.randn(2, 5).double(),), settings, group=group)
    for size in (4, 8, 4):
        x, y = torch.randn(size, 5).double(), torch.randn(size, 3).double()
        loss = pipeline.step(x, target=y)
        alone.zero_grad()
        losses = []
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            one = mse_loss(alone(part), target) / 2
            one.backward()
            losses.append(float(one.detach()))
        assert abs(sum(losses) - loss) < 1e-12
        gradients_equal(pipeline, alone)
        buffers = dict(alone.named_buffers())
        for module in pipeline.modules.values():
            for name, buffer in module.named_buffers():
                torch.testing.assert_close(buffer, buffers[name], rtol=0, atol=1e-12)


def keywords_and_containers(group):
    """Every stage gets its part of the padding mask; targets may be a dict."""
    torch.manual_seed(0)
    model = TinyEncoder(20, 3, width=9, num_heads=3, num_layers=4, ffn_width=7).double()
    alone = copy.deepcopy(model)
    ids, labels = torch.randint(0, 20, (6, 5)), torch.randint(0, 3, (6,))
    keep = torch.arange(5)[None] < torch.randint(1, 6, (6, 1))

    def loss(output, target):
        return cross_entropy(output, target["labels"])

    settings = PipelineSettings(3, "zero-bubble")
    keywords = {"keep_BT": keep[:2]}
    pipeline = LayerPipeline(model, loss, (ids[:2],), settings, keywords=keywords, group=group)
    found = pipeline.step(ids, target={"labels": labels}, keep_BT=keep)
    expected = cross_entropy(alone(ids, keep), labels)
    expected.backward()
    assert abs(found - float(expected.detach())) < 1e-12
    gradients_equal(pipeline, alone)
    work = {(span.stage, span.kind, span.microbatch) for span in pipeline.timeline()}
    kinds = ("forward", "input", "weight")
    # The first stage has no input to differentiate; torch still announces it.
    assert work == {(stage, kind, k) for stage in range(2) for kind in kinds for k in range(3)}
    output = pipeline.predict(ids[:5], keep_BT=keep[:5])
    torch.testing.assert_close(output, alone(ids[:5], keep[:5]).detach(), rtol=0, atol=1e-12)


def stock_ddp_around_stages(group, data_group, schedule):
    """`wrap` puts DDP around a stage; it reduces after the last microbatch."""
    place = dist.get_rank(data_group)
    model, alone = build("compact"), build("compact")

    def wrap(module):
        return DistributedDataParallel(module, process_group=data_group)

    settings = PipelineSettings(4, schedule)
    pipeline = LayerPipeline(model, loss_of, (batch_of(0, 1)[0],), settings, group=group, wrap=wrap)
    for step in range(2):
        ids, target = batch_of(step, 8)
        share = slice(4 * place, 4 * place + 4)
        pipeline.step(ids[share], target=target[share])
        alone.zero_grad()
        loss_of(alone(ids), target).backward()
        gradients_equal(pipeline, alone)


def bad_input_is_named(group):
    model = build("dense")
    settings = PipelineSettings(4)
    pipeline = LayerPipeline(model, loss_of, (batch_of(0, 1)[0],), settings, group=group)
    ids, target = batch_of(0, 6)
    with pytest.raises(InputError, match="6 samples cannot be cut into 4 equal microbatches"):
        pipeline.step(ids, target=target)
    with pytest.raises(InputError, match=r"stages need at least as many layers, but GPT has 1"):
        LayerPipeline(build("dense", num_layers=1), loss_of, (ids,), settings, group=group)
    with pytest.raises(InputError, match="schedule must be one of"):
        LayerPipeline(model, loss_of, (ids,), PipelineSettings(4, "2f2b"), group=group)


def run_all(group, data_group):
    shapes_change_and_statistics_stay(group)
    keywords_and_containers(group)
    for schedule in ("1f1b", "message-driven"):
        stock_ddp_around_stages(group, data_group, schedule)
    bad_input_is_named(group)
