# SPDX-License-Identifier: Apache-2.0
"""SAMO as published: 24 f + 2 bytes that are really there, and the steps of masked Adam."""

import copy
import itertools

import pytest
import torch
from grid_ranks import run_on_ranks
from loop_tools import RECIPE, same, state_of, train
from torch import nn
from torch.nn.functional import cross_entropy

import gossamer
from gossamer.data import RepeatedBatches
from gossamer.errors import InputError, RecipeError
from gossamer.nn.layers import CompactWeight
from gossamer.nn.layers.parts import DenseHome
from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement import MeshSettings, ProcessMesh
from gossamer.training.distributed.processes import Timeouts, joined
from gossamer.training.loop import LearningRate, Loop, LoopSettings, Surroundings
from gossamer.training.memory import measure
from gossamer.training.optim import LAMB, LARS, SGD, AdamW
from gossamer.training.optim.scaling import LossScaler
from gossamer.training.samo import hold_samo
from gossamer.zoo import GPT
from gossamer.zoo.switch import SwitchGPT

SPARSITIES = (0.8, 0.9, 0.95)


def gpt_after_a_step(sparsity, dtype, width=256):
    """A GPT held as SAMO does, after one step, gradients still there; dense for sparsity 0."""
    torch.manual_seed(0)
    model = GPT(64, width=width, num_heads=4, num_layers=2, context=16)
    optimizer = AdamW(model.parameters(), master="wide")
    if sparsity:
        gossamer.sparsify(model, sparsity=sparsity)
        gossamer.compact(model, optimizer)
        hold_samo(model, optimizer, dtype)
    else:
        blocks = [m.weight for m in model.blocks.modules() if isinstance(m, nn.Linear)]
        optimizer.split_masters(blocks, dtype=dtype)
    ids = torch.arange(32).view(2, 16) % 64
    with torch.autocast("cpu", dtype):
        logits = model(ids)
    scaler = LossScaler(2.0**8)
    scaler.scale(cross_entropy(logits.float().flatten(0, 1), ids.flatten())).backward()
    assert scaler.step(optimizer)
    return model, optimizer


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sparsity", SPARSITIES)
def test_storages_are_24f_plus_2(sparsity, dtype):
    part = measure(*gpt_after_a_step(sparsity, dtype)).pruned
    assert part.num_parameters == 2 * 12 * 256**2
    expected = 24 * part.density + 2
    assert part.density == pytest.approx(1 - sparsity, abs=1e-4)
    assert part.bytes_per_parameter == pytest.approx(expected, rel=0.01)
    assert part.predicted_per_parameter == pytest.approx(expected, rel=1e-6)
    for kind, value in part.predicted.items():
        assert part.measured.get(kind, 0) == pytest.approx(value, rel=0.01, abs=400), kind


def test_the_published_66_and_78_percent_are_measured():
    """Against dense mixed precision, whose 20 bytes per parameter are held as well."""
    model, optimizer = gpt_after_a_step(0, torch.float16)
    held = [m.weight for m in model.blocks.modules() if isinstance(m, nn.Linear)]
    dense = sum(
        tensor.untyped_storage().nbytes()
        for weight in held
        for tensor in (weight, weight.grad, *optimizer.state[weight].values())
        if tensor.ndim
    ) / sum(weight.numel() for weight in held)
    assert dense == pytest.approx(20, rel=1e-6)
    for sparsity, published in ((0.8, 0.66), (0.9, 0.78)):
        part = measure(*gpt_after_a_step(sparsity, torch.float16)).pruned
        assert 1 - part.bytes_per_parameter / dense == pytest.approx(published, abs=2e-3)


def mlp():
    return nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 48)), (16, 48)


def conv_net():
    layers = nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 3, padding=1, groups=2)
    return nn.Sequential(*layers), (4, 4, 9, 9)


def run(model, optimizer, scaler, shape, steps, accumulate=1):
    """Train to give the input back; for each step the scale after it."""
    generator = torch.Generator().manual_seed(1)
    scales = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(accumulate):
            x = 3 * torch.randn(shape, generator=generator)
            with torch.autocast("cpu", torch.float16):
                loss = (model(x).float() - x).square().mean() / accumulate
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        if isinstance(scaler, torch.amp.GradScaler):
            scaler.update()
            scales.append(scaler.get_scale())
        else:
            scales.append(scaler.factor)
    return scales


@pytest.mark.parametrize("build", [mlp, conv_net])
@pytest.mark.parametrize("sparsity", [0.5, 0.9])
def test_it_is_masked_adam_in_fp16_with_the_scaler_of_torch(build, sparsity):
    torch.manual_seed(0)
    masked, shape = build()
    gossamer.sparsify(masked, sparsity=sparsity)
    model = copy.deepcopy(masked)
    plain = torch.optim.AdamW(masked.parameters(), 1e-2, foreach=False)
    optimizer = AdamW(model.parameters(), 1e-2, master="wide")
    gossamer.compact(model, optimizer)
    assert hold_samo(model, optimizer) == 2
    torchs = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=4)
    expected = run(masked, plain, torchs, shape, 30)
    found = run(model, optimizer, LossScaler(2.0**22, interval=4), shape, 30)
    assert found == expected
    skipped = sum(after < before for before, after in itertools.pairwise(expected))
    assert 2 <= skipped < 20
    for index in (0, 2):
        weight, mask = masked[index].weight.detach().flatten(1), masked[index].mask()
        assert torch.equal(optimizer.master_of(model[index].values), weight[mask])
        dense = torch.where(mask, weight, 0).half().view(model[index].weight_shape)
        assert torch.equal(model[index].dense_weight(), dense)
        assert torch.equal(model[index].bias, masked[index].bias)


@pytest.mark.parametrize("kind", [SGD, LAMB, LARS, AdamW])
def test_every_optimizer_steps_as_on_ordinary_float16_values(kind):
    """The reference keeps its values in a vector, and its gradient in 16 bits only."""
    torch.manual_seed(0)
    values = torch.randn(200).half()
    mask = torch.zeros(20, 30, dtype=torch.bool)
    mask.view(-1)[torch.randperm(600)[:200]] = True
    linear = nn.Linear(30, 20, bias=False)
    linear.weight.data[mask] = values.float()
    model = nn.Sequential(gossamer.nn.Linear.from_dense(linear, mask))
    optimizer = kind(model.parameters(), lr=0.1, master="wide")
    hold_samo(model, optimizer)
    plain = nn.Parameter(values.clone())
    other = kind([plain], lr=0.1, master="fp32")
    for _ in range(5):
        grad = torch.randn(200).half()
        model[0].values.grad, plain.grad = grad, grad.clone()
        optimizer.step()
        other.step()
    assert torch.equal(optimizer.master_of(model[0].values), other.master_of(plain))
    assert torch.equal(model[0].kept_values(), plain.detach())
    assert torch.equal(model[0].dense_weight()[mask], plain.detach())
    assert model[0].dense_weight()[~mask].eq(0).all()


def test_accumulated_batches_add_up_in_16_bits():
    torch.manual_seed(0)
    masked, shape = mlp()
    gossamer.sparsify(masked, sparsity=0.8)
    model = copy.deepcopy(masked)
    optimizer = AdamW(model.parameters(), 1e-2, master="wide")
    gossamer.compact(model, optimizer)
    hold_samo(model, optimizer)
    run(model, optimizer, LossScaler(2.0**10), shape, 3, accumulate=4)
    values = model[0].values
    assert values.grad.dtype is torch.float16
    assert values.grad.shape == values.shape
    plain = torch.optim.AdamW(masked.parameters(), 1e-2, foreach=False)
    run(masked, plain, torch.amp.GradScaler("cpu", init_scale=2.0**10), shape, 3, accumulate=4)
    # Sums of four gradients are rounded to 11 bits here, which Adam's first steps hardly see.
    difference = optimizer.master_of(values) - masked[0].weight[masked[0].mask()]
    assert difference.abs().max() < 3e-3


def held(sparsity=0.8, dtype=torch.float16):
    torch.manual_seed(0)
    model, shape = mlp()
    gossamer.sparsify(model, sparsity=sparsity)
    optimizer = AdamW(model.parameters(), 1e-2, master="wide")
    gossamer.compact(model, optimizer)
    hold_samo(model, optimizer, dtype)
    return model, optimizer, shape


def test_copies_files_and_casts_carry_the_numbers(tmp_path):
    model, optimizer, shape = held()
    run(model, optimizer, LossScaler(2.0**8), shape, 2)
    layer = model[0]
    expected, mask = layer.dense_weight(), layer.mask()
    assert torch.equal(layer.matrix().dense(), expected)
    assert "mask_bits" not in dict(layer.named_buffers())
    assert torch.equal(layer.to_dense().weight, expected)
    state = model.state_dict()
    assert sorted(key for key in state if key.startswith("0.")) == [
        "0.bias",
        "0.mask_bits",
        "0.values",
    ]
    other, _, _ = held(sparsity=0.6)
    other.load_state_dict(state)
    assert torch.equal(other[0].dense_weight(), expected)
    assert torch.equal(other[0].mask(), mask)
    twin = copy.deepcopy(model)
    twin[0]._home.write(torch.zeros_like(layer.kept_values()))
    assert torch.equal(layer.dense_weight(), expected)
    gossamer.save(model, tmp_path / "model")
    loaded = gossamer.load(tmp_path / "model")
    assert (loaded[0].mode, loaded[0].values.dtype) == ("samo", torch.float16)
    assert torch.equal(loaded[0].dense_weight(), expected)
    fresh, _, _ = held(sparsity=0.5)
    gossamer.load(tmp_path / "model", model=fresh)
    assert torch.equal(fresh[0].dense_weight(), expected)
    model.float()
    assert torch.equal(layer.dense_weight(), expected.float())
    layer.switch("jit")
    assert torch.equal(layer.values, expected[mask].float())
    assert torch.equal(layer.mask(), mask)
    x = torch.randn(2, 48)
    torch.testing.assert_close(model(x), loaded.float()(x))


def test_masks_move_with_everything_that_is_kept():
    model, optimizer, shape = held()
    run(model, optimizer, LossScaler(2.0**8), shape, 2)
    layer = model[0]
    dense, master = layer.dense_weight(), layer.spread(optimizer.master_of(layer.values))
    old, new = layer.mask(), layer.mask().roll(1, 1)
    layer.remap(new, optimizer)
    assert layer.mode == "samo"
    assert torch.equal(layer.dense_weight(), torch.where(new & old, dense, 0))
    moved = layer.spread(optimizer.master_of(layer.values))
    assert torch.equal(moved, torch.where(new & old, master, 0))
    run(model, optimizer, LossScaler(2.0**8), shape, 2)
    assert layer.dense_weight()[~new].eq(0).all()
    with pytest.raises(InputError, match="mode must be one of"):
        layer.switch("fast")


@pytest.mark.parametrize("kept", [0, 1, 2, 12])
def test_few_values_and_all(kept):
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask.view(-1)[:kept] = True
    model = nn.Sequential(gossamer.nn.Linear.from_dense(nn.Linear(4, 3), mask))
    expected = model[0].values.detach().clone()
    optimizer = AdamW(model.parameters(), 0.1, master="wide")
    hold_samo(model, optimizer)
    assert torch.equal(model[0].kept_values(), expected.half())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    moved = optimizer.master_of(model[0].values)
    assert torch.equal(model[0].kept_values(), moved.half())
    assert (moved != expected).all()
    assert torch.equal(model[0].mask(), mask)


def test_what_samo_cannot_hold_is_refused_before_anything_changes():
    model, _ = mlp()
    gossamer.sparsify(model, sparsity=0.5)
    with pytest.raises(InputError, match="no compact layer"):
        hold_samo(model, AdamW(model.parameters(), master="wide"))
    gossamer.compact(model)
    with pytest.raises(InputError, match="knows no float32 masters"):
        hold_samo(model, torch.optim.AdamW(model.parameters()))
    with pytest.raises(InputError, match="holds 0 with master='split'"):
        hold_samo(model, AdamW(model.parameters()))
    assert model[0].mode == "jit"
    half = copy.deepcopy(model).half()
    with pytest.raises(InputError, match=r"weights of 0 are torch.float16; expected float32"):
        hold_samo(half, AdamW(half.parameters(), master="wide"))
    tied = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    tied[1].weight = tied[0].weight
    gossamer.sparsify(tied, sparsity=0.5)
    gossamer.compact(tied)
    with pytest.raises(InputError, match="1 shares its weight with 0"):
        hold_samo(tied, AdamW(tied.parameters(), master="wide"))
    for layer in tied:
        layer.mode = "resident"
    tied[0].give_up_values()
    with pytest.raises(InputError, match="another layer shares the values"):
        tied[1].give_up_values()
    experts = SwitchGPT(16, width=8, num_heads=2, num_layers=2, context=8)
    gossamer.sparsify(experts, sparsity=0.5)
    settings = LoopSettings(1, LearningRate("constant", 1), compaction="samo", precision="fp16")
    optimizer = AdamW(experts.parameters(), master="wide")
    with pytest.raises(InputError, match="of kind experts, which trains without a dense weight"):
        Loop(experts, optimizer, None, [], settings)
    with pytest.raises(InputError, match="float16 is not the upper half"):
        AdamW(mlp()[0].parameters()).split_masters(dtype=torch.float16)


def test_second_derivatives_and_compilers_are_told_where_the_values_are():
    model, _, _ = held(dtype=torch.bfloat16)
    x = torch.randn(2, 48, requires_grad=True)
    with pytest.raises(InputError, match="second derivatives"):
        torch.autograd.grad(model(x).sum(), model[0].values, create_graph=True)
    conv, _ = conv_net()
    gossamer.sparsify(conv, sparsity=0.5)
    gossamer.compact(conv)
    conv[0].switch("samo")
    for layer, image in ((conv[0], torch.ones(1, 4, 5, 5)), (model[0], torch.ones(1, 48))):
        with pytest.raises(Exception, match="take_back_values"):
            torch.export.export(nn.Sequential(layer), (image,))
    conv(torch.ones(1, 4, 5, 5)).sum().backward()
    stranger = torch.optim.AdamW([conv[0].values], foreach=False)
    with pytest.raises(RuntimeError, match="single memory location"):
        stranger.step()


SAMO = RECIPE.replace("compaction: auto", "compaction: samo\n      precision: fp16")


@pytest.mark.parametrize("change", ["", "clip: null", "optimizer: {name: lamb, lr: 0.01}"])
def test_a_run_is_the_masked_run_and_goes_on_to_the_bit(tmp_path, change):
    text = f"{SAMO}      {change}\n"
    whole = train(tmp_path / "whole", text)
    assert train(tmp_path / "cut", text, stop_after=7) is None
    assert train(tmp_path / "cut", text, stop_after=17, resume=True) is None
    resumed = train(tmp_path / "cut", text, resume=True)
    state = state_of(whole)
    assert same(state, state_of(resumed))
    assert state["loss_scale"]["good_steps"] == 24
    layers = [m for m in whole.loop.model.modules() if isinstance(m, CompactWeight)]
    assert [layer.mode for layer in layers] == ["samo", "samo"]
    part = measure(whole.loop.model, whole.loop.optimizer).pruned
    masked = train(tmp_path / "masked", text.replace("compaction: samo", "compaction: 'off'"))
    names = dict(masked.loop.model.named_modules())
    for name, layer in whole.loop.model.named_modules():
        if isinstance(layer, CompactWeight):
            expected = names[name].weight[names[name].mask()]
            found = whole.loop.optimizer.master_of(layer.values)
            # Norms, for clipping, are sums in another order where zeros stand between.
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
            assert change != "clip: null" or torch.equal(found, expected)
    assert part.num_kept == sum(layer.nnz for layer in layers)


class _Records:
    def __init__(self):
        self.records = []

    def write(self, record):
        self.records.append(record)

    def close(self):
        """Nothing is open."""


def _loop(processes=None, factor=1.0, master="wide", compaction="samo", clip=0.5):
    """A masked network on images of noise; every third loss has a gradient that overflows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 12))
    gossamer.sparsify(model, sparsity=0.75)
    generator = torch.Generator().manual_seed(3)
    batches = RepeatedBatches([torch.randn(8, 12, generator=generator) for _ in range(5)])

    def objective(net, x):
        return factor * (net(x).float() - x).square().mean()

    settings = LoopSettings(
        12,
        LearningRate("constant", 12),
        clip=clip,
        precision="fp16",
        compaction=compaction,
        accumulate=2,
        log_every=1,
    )
    records = _Records()
    optimizer = AdamW(model.parameters(), 1e-2, master=master)
    around = Surroundings(sinks=(records,))
    loop = Loop(model, optimizer, objective, batches, settings, around=around, processes=processes)
    return loop, records


def test_skipped_steps_of_the_loop_are_those_of_the_masked_one():
    runs = []
    for compaction in ("samo", "off"):
        loop, records = _loop(factor=1e3, compaction=compaction, clip=None)
        loop.train()
        skipped = [(r["batch"], r["loss_scale"]) for r in records.records if r["kind"] == "skipped"]
        runs.append((skipped, loop.scaler.state_dict(), loop.step))
    assert runs[0] == runs[1]
    assert len(runs[0][0]) > 3  # more in a row than a run in fp32 survives
    assert runs[0][2] == 12


def test_a_loss_that_is_not_finite_ends_a_run_although_the_loss_is_scaled():
    loop, _ = _loop(factor=float("inf"))
    with pytest.raises(gossamer.errors.GossamerError, match="3 times in a row"):
        loop.train()


def _on_ranks(mesh) -> None:
    with joined(MeshSizes(*mesh), Timeouts(start=60, step=60, heartbeat=1)) as session:
        loop, records = _loop(ProcessMesh(session, MeshSettings()), factor=1e3)
        loop.train()
        values = loop.model[0].values
        assert values.grad is None or values.grad.dtype is torch.float16
        if session.is_lead:
            alone, expected = _loop(factor=1e3)
            alone.train()
            kinds = [
                [r["kind"] for r in found.records if r["kind"] in ("step", "skipped")]
                for found in (records, expected)
            ]
            assert kinds[0] == kinds[1]
            assert loop.scaler.state_dict() == alone.scaler.state_dict()
            state = loop.state()
            assert state["forms"]["0"]["mode"] == "samo"
            one, two = state["optimizer"]["state"], alone.state()["optimizer"]["state"]
            assert {key: list(entry) for key, entry in one.items()} == {
                key: list(entry) for key, entry in two.items()
            }
            for index, entry in two.items():
                # Halves of a batch are rounded to float16 before they are added.
                torch.testing.assert_close(one[index]["exp_avg"], entry["exp_avg"], rtol=0.02,
                                           atol=1e-3)  # fmt: skip
            assert DenseHome.of(values).has_index


@pytest.mark.timeout(600)
def test_data_ranks_add_compressed_16_bit_gradients():
    run_on_ranks(_on_ranks, [(2, (2, 1, 1, 1))], 2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("precision: fp16", "precision: fp32", r"compaction.*16 bits; set precision"),
        (
            "steps: 24",
            "steps: 24\n      optimizer: {master: split}",
            "optimizer.master.*must be fp32",
        ),
        ("steps: 24", "steps: 24\n      mesh: {shard: 2}", "mesh.shard.*data only"),
    ],
)
def test_recipes_that_do_not_go_with_it(tmp_path, old, new, message):
    assert old in SAMO
    with pytest.raises(RecipeError, match=message):
        train(tmp_path / "run", SAMO.replace(old, new))
