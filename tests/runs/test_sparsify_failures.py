# SPDX-License-Identifier: Apache-2.0
"""An error at any step of sparsify, compact and attach leaves the model exactly as it was."""

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.nn.surgery import unchanged_on_error
from gossamer.recipes import make_recipe


class Net(nn.Module):
    """Convolution, batch norm, tied Linears and an encoder with fast paths."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        encoder = nn.TransformerEncoderLayer(36, 2, 16, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(encoder, 1)
        self.one, self.two = nn.Linear(36, 36), nn.Linear(36, 36)
        self.two.weight = self.one.weight
        self.last = nn.Linear(36, 3)

    def forward(self, x):
        tokens = self.norm(self.conv(x)).flatten(2)
        return self.last(self.two(torch.relu(self.one(self.encoder(tokens)))))


def make_net() -> Net:
    torch.manual_seed(0)
    net = Net()
    net.train()
    net.norm.eval()
    net.last.bias.requires_grad_(False)
    net.one.register_forward_hook(lambda module, args, output: output)
    net.last.weight.grad = torch.ones_like(net.last.weight)
    return net


def batches(count=2):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 1, 8, 8, generator=generator) for _ in range(count)]


def picture(model: nn.Module) -> list:
    """Everything about a model: objects by identity, tensors also by their numbers."""
    seen = []
    for name, module in model.named_modules(remove_duplicate=False):
        seen.append((name, id(module), type(module), module.training))
        for key, value in module.__dict__.items():
            is_table = isinstance(value, dict | list | set)
            members = [(k, id(v)) for k, v in value.items()] if isinstance(value, dict) else []
            plain = value if isinstance(value, bool | int | str) else None
            seen.append((name, key, None if is_table and not members else id(value), plain))
            seen.append((name, key, members))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        grad = None if tensor.grad is None else (id(tensor.grad), tensor.grad.tolist())
        numbers = tensor.detach().clone().view(-1).tolist()
        seen.append((name, id(tensor), tensor.data_ptr(), tensor.requires_grad, grad, numbers))
    return seen


class Boom(Exception):
    """What a step raises."""


def explode(*args, **kwargs):
    raise Boom


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


# Where a step is found by whoever calls it.
STEPS = {
    "evaluated before": None,
    "evaluated after": None,
    "first layer masked": "gossamer.pruning.oneshot.mask_in",
    "third layer masked": "gossamer.pruning.oneshot.mask_in",
    "fast paths off": "gossamer.pruning.oneshot.disable_fast_paths",
    "report": "gossamer.runs.executor.make_report",
    "tokens counted": "gossamer.runs.executor.tokens_seen",
    "timed": "gossamer.runs.executor.time_beside_dense",
    "compiled": "gossamer.runs.executor.compile_model",
    "raced": "gossamer.runs.executor.duel",
}
STAGES = {
    "one shot": {"sparsity": 0.5},
    "calibrated": {"sparsity": 0.5, "scorer": "sparsegpt", "ignore": ["*.out_proj"]},
    "gradients": {"sparsity": 0.5, "scorer": "obert", "ignore": ["*.out_proj"]},
}
RECIPE = {
    "gossamer": 1,
    "stages": [
        {"prune": {"method": "wanda", "sparsity": 0.5, "ignore": ["*.out_proj"]}},
        {"round": {}},
        {"prune": {"method": "magnitude", "sparsity": 0.75, "ignore": ["*.out_proj"]}},
    ],
}


def failing(monkeypatch, step, error):
    """Arguments of the call that fails at `step`."""
    place = STEPS[step]
    if place is None:
        calls = []

        def evaluate(model):
            calls.append(model)
            return 1.0 if step == "evaluated after" and len(calls) == 1 else error()

        return {"evaluate": evaluate}
    module, name = place.rsplit(".", 1)
    real, calls = getattr(__import__(module, fromlist=[name]), name), []

    def sometimes(*args, **kwargs):
        calls.append(1)
        return real(*args, **kwargs) if step.startswith("third") and len(calls) < 3 else error()

    monkeypatch.setattr(place, sometimes)
    return {}


@pytest.mark.parametrize("stage", [*STAGES, "recipe"])
@pytest.mark.parametrize("step", list(STEPS))
def test_a_failure_at_any_step_of_sparsify_changes_nothing(stage, step, monkeypatch):
    arguments = STAGES.get(stage, {})
    if stage == "recipe":
        arguments = {"recipe": make_recipe(RECIPE, "a test")}
    error = interrupt if step in ("raced", "third layer masked") else explode
    net = make_net()
    before = picture(net)
    more = failing(monkeypatch, step, error)
    with pytest.raises((Boom, KeyboardInterrupt)):
        gossamer.sparsify(net, **arguments, data=batches(), **more)
    assert picture(net) == before


@pytest.mark.parametrize("scorer", ["sparsegpt", "obert"])
def test_a_failure_between_layers_changes_nothing(scorer, monkeypatch):
    solved = {"sparsegpt": "gossamer.pruning.calibration.calibrated.check_inside"}
    place = solved.get(scorer, "gossamer.pruning.gradients.pruning.check_inside")
    calls = []

    def third_fails(*args):
        calls.append(1)
        if len(calls) == 3:
            raise Boom

    monkeypatch.setattr(place, third_fails)
    net = make_net()
    before = picture(net)
    with pytest.raises(Boom):
        gossamer.sparsify(net, scorer=scorer, sparsity=0.5, data=batches(), ignore=["*.out_proj"])
    assert picture(net) == before


def test_a_model_that_is_masked_already_keeps_its_masks():
    net = make_net()
    gossamer.sparsify(net, sparsity=0.3)
    before = picture(net)
    with pytest.raises(Boom):
        gossamer.sparsify(net, sparsity=0.6, evaluate=lambda m: explode() if is_denser(m) else 1)
    assert picture(net) == before


def is_denser(model) -> bool:
    return model.last.density < 0.6


def test_a_failed_compact_changes_neither_model_nor_optimizer(monkeypatch):
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    gossamer.sparsify(net, sparsity=0.5)
    net(batches()[0]).square().mean().backward()
    optimizer.step()
    monkeypatch.setattr("gossamer.nn.surgery.compaction.disable_fast_paths", explode)
    before, state = picture(net), optimizer_picture(optimizer)
    with pytest.raises(Boom):
        gossamer.compact(net, optimizer)
    assert picture(net) == before
    assert optimizer_picture(optimizer) == state


def optimizer_picture(optimizer) -> list:
    groups = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    state = [
        (id(p), key, value.tolist())
        for p, entry in optimizer.state.items()
        for key, value in entry.items()
    ]
    hooks = [len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)]
    return [groups, state, hooks]


@pytest.mark.parametrize("place", ["run.Run.event", "controller.Controller._arm"])
def test_a_failed_attach_changes_neither_model_nor_optimizer(place, monkeypatch):
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(batches()[0]).square().mean().backward()
    optimizer.step()
    before, state = picture(net), optimizer_picture(optimizer)
    with monkeypatch.context() as patch:
        patch.setattr(f"gossamer.pruning.schedules.{place}", explode)
        given = {"kind": "oneshot", "at": 0, "sparsity": 0.5}
        with pytest.raises(Boom):
            gossamer.attach(net, given, optimizer, total_steps=4)
    assert picture(net) == before
    assert optimizer_picture(optimizer) == state
    # Nobody holds the layers: another schedule takes them.
    given = {"kind": "gradual", "sparsity": 0.5, "begin": 0, "end": 2, "every": 1}
    gossamer.attach(net, given, optimizer, total_steps=4).close()


def spoil(layer):
    with unchanged_on_error(layer):
        layer.weight.data = torch.zeros(2, 2)
        layer.bias.data.zero_()
        layer.weight.requires_grad_(False)
        layer.extra = nn.Linear(2, 2)
        del layer.same
        raise Boom


def test_storage_that_was_swapped_under_a_parameter_comes_back():
    layer = nn.Linear(4, 4)
    layer.register_buffer("same", torch.tensor(1.0).expand(3))
    before, kept = picture(layer), copy.deepcopy(layer.state_dict())
    with pytest.raises(Boom):
        spoil(layer)
    assert picture(layer) == before
    assert all(torch.equal(layer.state_dict()[name], value) for name, value in kept.items())
