# SPDX-License-Identifier: Apache-2.0
"""The training loop: gradients, learning rates, skipped batches, compaction, stopping."""

import os
import signal

import numpy
import pytest
import torch
from loop_tools import RECIPE, same, state_of, train
from torch import nn

import gossamer
from gossamer import sparsify
from gossamer.data import RepeatedBatches, ShuffledBatches, generator_of
from gossamer.errors import ArtifactError, InputError, RecipeError, ResourceError
from gossamer.nn import Linear, MaskedLinear
from gossamer.nn.layers import CompactWeight
from gossamer.training.checkpoint import CheckpointStore, CheckpointWriter, Snapshot
from gossamer.training.loop import LearningRate, Loop, LoopSettings, Surroundings
from gossamer.training.loop.endings import TrainingDiverged, TrainingStopped
from gossamer.training.loop.processes import recomputing
from gossamer.training.run_files import MetricsFile, read_metrics
from gossamer.zoo import TinyEncoder

CONSTANT = LearningRate("constant", 10)


class Records:
    def __init__(self):
        self.held = []

    def write(self, record):
        self.held.append(dict(record))

    def close(self):
        pass

    def of(self, kind):
        return [record for record in self.held if record["kind"] == kind]


def squares(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def regression(num_batches=4, size=8, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return RepeatedBatches(
        [
            (
                torch.randn(size, 6, generator=generator).to(dtype),
                torch.randn(size, 3, generator=generator).to(dtype),
            )
            for _ in range(num_batches)
        ]
    )


def small(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)


def loop_of(model, batches=None, objective=squares, sinks=(), writer=None, evaluate=None, **words):
    settings = LoopSettings(**{"steps": 6, "rate": CONSTANT, "log_every": 1, **words})
    around = Surroundings(sinks=tuple(sinks), writer=writer, evaluate=evaluate)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    batches = regression() if batches is None else batches
    return Loop(model, optimizer, objective, batches, settings, around=around)


def test_equals_a_plain_loop_bit_by_bit():
    ours, plain = small(), small()
    loop_of(ours).train()
    optimizer, batches = torch.optim.AdamW(plain.parameters(), 1e-2), regression()
    for number in range(6):
        optimizer.zero_grad()
        squares(plain, batches[number]).backward()
        optimizer.step()
    assert same(dict(ours.state_dict()), dict(plain.state_dict()))


def test_accumulated_batches_are_one_large_batch():
    once, twice = small(dtype=torch.float64), small(dtype=torch.float64)
    parts = regression(dtype=torch.float64)
    joined = [tuple(map(torch.cat, zip(parts[i], parts[i + 1], strict=True))) for i in (0, 2)]
    loop_of(once, RepeatedBatches(joined), steps=4).train()
    loop_of(twice, parts, steps=4, accumulate=2).train()
    for one, two in zip(once.parameters(), twice.parameters(), strict=True):
        assert torch.allclose(one, two, rtol=1e-9, atol=1e-12)


def test_gradients_are_clipped_to_the_norm():
    model = small()
    before = [param.detach().clone() for param in model.parameters()]
    records = Records()
    loop = loop_of(model, sinks=[records], steps=1, clip=1e-3)
    loop.optimizer = torch.optim.SGD(model.parameters(), 1.0)
    loop.train()
    after = [param.detach() for param in model.parameters()]
    moved = sum((a - b).square().sum() for a, b in zip(after, before, strict=True))
    assert float(moved) ** 0.5 == pytest.approx(1e-3, rel=1e-4)
    assert records.of("step")[0]["gradient_norm"] > 1e-3


@pytest.mark.parametrize("shape", ["cosine", "linear", "constant"])
def test_learning_rates_rise_and_fall(shape):
    rate = LearningRate(shape, 100, 10, 0.1)
    factors = [rate.factor(step) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9] == factors[10] == 1
    assert factors[100] == (1 if shape == "constant" else pytest.approx(0.1))
    assert factors[10:] == sorted(factors[10:], reverse=True)
    if shape != "constant":
        assert factors[55] == pytest.approx(0.55)


@pytest.mark.parametrize(("steps", "warmup", "floor"), [(5, 6, 0), (5, -1, 0), (5, 1, 1.5)])
def test_learning_rates_that_make_no_sense(steps, warmup, floor):
    with pytest.raises(InputError, match="learning rate"):
        LearningRate("cosine", steps, warmup, floor)


def test_every_group_keeps_its_own_peak():
    model = small()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 1.0}, {"params": model[2].parameters()}], lr=0.5
    )
    rate = LearningRate("linear", 10)
    assert rate.apply(optimizer, 5) == 0.5
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
    rate.apply(optimizer, 5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]


def poisoned(bad):
    """Gradients of the last layer are not finite in the given batches."""

    class Poison:
        def __len__(self):
            return 4

        def __getitem__(self, number):
            x, y = regression()[number]
            return x, y, float("inf") if number in bad else 1.0

    def objective(model, batch):
        x, y, factor = batch
        hidden = model[1](model[0](x)).detach() if factor != 1 else model[1](model[0](x))
        return ((model[2](hidden) - y) * factor).square().mean()

    return Poison(), objective


def test_batches_with_infinite_gradients_are_skipped_and_counted():
    batches, objective = poisoned({1, 2, 5})
    model, records = small(), Records()
    loop = loop_of(model, batches, objective, sinks=[records])
    loop.train()
    assert (loop.step, loop.taken, loop.skipped) == (6, 9, 3)
    # As if the batches had not been there.
    rest, objective = poisoned(set())
    good = [rest[number] for number in (0, 3, 4, 6, 7, 8)]
    plain = small()
    expected = loop_of(plain, RepeatedBatches(good), objective)
    expected.train()
    assert same(dict(model.state_dict()), dict(plain.state_dict()))
    assert same(loop.optimizer.state_dict(), expected.optimizer.state_dict())
    skipped = records.of("skipped")
    assert [record["batch"] for record in skipped] == [1, 2, 5]
    assert all("2.weight (48 of 48)" in record["layers"] for record in skipped)
    assert all(param.isfinite().all() for param in model.parameters())


def test_three_in_a_row_stop_the_run_and_name_the_layer():
    batches, objective = poisoned({2, 3, 4})
    model = small()
    loop = loop_of(model, batches, objective)
    with pytest.raises(TrainingDiverged, match=r"3 times in a row, in 2\.weight") as caught:
        loop.train()
    assert caught.value.exit_code == 4
    assert loop.step == 2
    assert all(param.isfinite().all() for param in model.parameters())


def test_an_objective_must_return_one_number():
    with pytest.raises(InputError, match=r"one number as a tensor, got \[8, 3\]"):
        loop_of(small(), objective=lambda model, batch: model(batch[0])).train()
    with pytest.raises(InputError, match="got float"):
        loop_of(small(), objective=lambda model, batch: 1.0).train()


def test_numbers_of_the_objective_are_logged():
    records = Records()

    def objective(model, batch):
        return squares(model, batch), {"half": 0.5}

    loop_of(small(), objective=objective, sinks=[records], accumulate=2).train()
    assert [record["half"] for record in records.of("step")] == [0.5] * 6


@pytest.mark.parametrize("mode", ["jit", "kernel", "resident", "auto", "off"])
def test_masks_that_are_there_are_held_and_compacted(mode, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    model = small()
    sparsify(model, sparsity=0.5)
    masks = [layer.mask() for layer in model if isinstance(layer, MaskedLinear)]
    records = Records()
    loop_of(model, sinks=[records], steps=12, compaction=mode).train()
    kind = MaskedLinear if mode == "off" else Linear
    layers = [layer for layer in model if isinstance(layer, kind)]
    assert all(map(torch.equal, (layer.mask() for layer in layers), masks))
    assert len(records.of("compaction")) == len(records.of("compaction-effect")) == (mode != "off")
    if mode in ("jit", "kernel"):
        assert all(layer.mode == mode for layer in layers)


def test_compaction_shrinks_what_training_holds():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    sparsify(model, sparsity=0.9, ignore=["2"])
    records = Records()
    batches = RepeatedBatches([(torch.randn(4, 64), torch.randn(4, 3))])
    loop_of(model, batches, sinks=[records], steps=12, compaction="jit").train()
    record, effect = records.of("compaction")[0], records.of("compaction-effect")[0]
    assert (record["weights"], record["values"]) == (64 * 64, 410)
    assert effect["bytes_after"] < 0.3 * 16 * 64 * 64


def test_evaluation_changes_nothing():
    def evaluate(model):
        assert not model.training
        assert not torch.is_grad_enabled()
        torch.rand(7)
        return {"quality": 0.25}

    model, undisturbed, records = small(), small(), Records()
    model.append(nn.Dropout(0.5))
    undisturbed.append(nn.Dropout(0.5))
    torch.manual_seed(3)
    loop = loop_of(model, evaluate=evaluate, sinks=[records], evaluate_every=2)
    loop.train()
    torch.manual_seed(3)
    loop_of(undisturbed).train()
    assert same(dict(model.state_dict()), dict(undisturbed.state_dict()))
    assert [record["step"] for record in records.of("evaluation")] == [2, 4, 6]
    assert loop.quality == {"quality": 0.25}


def test_bf16_runs_under_autocast_with_fp32_weights():
    seen = []
    model = small()
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    loop_of(model, precision="bf16", steps=2).train()
    assert seen == [torch.bfloat16] * 2
    assert all(param.dtype == torch.float32 for param in model.parameters())


def test_recomputed_blocks_give_the_same_gradients():
    torch.manual_seed(0)
    model = TinyEncoder(20, 3, width=16, num_heads=2, num_layers=2, ffn_width=32)
    ids = torch.randint(20, (2, 5))
    runs = []
    model.layers[0].up.register_forward_hook(lambda *_: runs.append(1))
    grads = []
    for enabled in (False, True):
        with recomputing(model, enabled):
            model.zero_grad()
            model(ids).sum().backward()
        grads.append([param.grad.clone() for param in model.parameters()])
    assert len(runs) == 3
    assert all(map(torch.equal, *grads))
    assert "forward" not in vars(model.layers[0])
    with pytest.raises(InputError, match="no ModuleList"), recomputing(nn.Linear(2, 2), True):
        pass


def test_a_signal_saves_and_stops(tmp_path):
    store = CheckpointStore(tmp_path / "c")
    model = small()

    def objective(net, batch):
        if loop.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return squares(net, batch)

    loop = loop_of(model, objective=objective, writer=CheckpointWriter(store))
    with pytest.raises(TrainingStopped, match="after step 4; its state is saved") as caught:
        loop.train()
    assert caught.value.exit_code == 143
    assert store.newest(pytest.fail).step == 4
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_full_disk_may_be_ignored_if_the_user_says_so(tmp_path):
    class Full:
        copies = False

        def submit(self, snapshot):
            raise ResourceError("no room")

        def wait(self):
            pass

    records = Records()
    with pytest.raises(ResourceError, match="no room"):
        loop_of(small(), writer=Full(), checkpoint_every=2).train()
    loop = loop_of(
        small(), writer=Full(), checkpoint_every=2, on_full_disk="go-on", sinks=[records]
    )
    loop.train()
    assert loop.step == 6
    assert [record["step"] for record in records.of("checkpoint-failed")] == [2, 4, 6]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"steps": -1}, "steps"),
        ({"accumulate": 0}, "accumulate"),
        ({"clip": 0.0}, "clip"),
        ({"precision": "fp8"}, "fp32, bf16 or fp16"),
        ({"compaction": "fast"}, "one of auto"),
        ({"compaction": "samo"}, "16-bit weights; set precision"),
        ({"compaction": "samo", "precision": "fp16", "split_masters": True}, "float32 masters"),
        ({"log_every": 0}, "log_every"),
    ],
)
def test_settings_that_make_no_sense(words, match):
    with pytest.raises(InputError, match=match):
        LoopSettings(**{"steps": 1, "rate": CONSTANT, **words})


def test_batches_are_a_function_of_their_number():
    batches = ShuffledBatches(10, 3, 1, lambda index: index.tolist())
    again = ShuffledBatches(10, 3, 1, lambda index: index.tolist())
    first = [batches[number] for number in range(9)]
    assert first == [again[number] for number in reversed(range(9))][::-1]
    for epoch in range(3):
        drawn = {index for batch in first[3 * epoch : 3 * epoch + 3] for index in batch}
        assert len(drawn) == 9
    assert first[:3] != first[3:6]
    state = torch.get_rng_state()
    batches[100]
    assert torch.equal(state, torch.get_rng_state())
    assert generator_of(1, 2).initial_seed() != generator_of(2, 1).initial_seed()
    with pytest.raises(InputError, match="2 samples do not make one batch of 3"):
        ShuffledBatches(2, 3, 0, list)


def test_metrics_go_on_where_the_checkpoint_was(tmp_path):
    path = tmp_path / "m.jsonl"
    first = MetricsFile(path)
    first.write({"kind": "step", "step": 1, "loss": float("nan")})
    length = first.length
    first.write({"kind": "step", "step": 2})
    first.close()
    second = MetricsFile(path, length)
    second.write({"kind": "step", "step": 2, "again": True})
    second.close()
    with path.open("ab") as file:
        file.write(b'{"kind": "st')
    assert read_metrics(path) == [
        {"kind": "step", "step": 1, "loss": "nan"},
        {"kind": "step", "step": 2, "again": True},
    ]


SCHEDULES = {
    "none": "null",
    "oneshot": "{kind: oneshot, sparsity: 0.8, at: 9}",
    "gradual": "{kind: gradual, sparsity: 0.8, begin: 2, end: 14, every: 3}",
    "regrow": "{kind: gradual, sparsity: 0.8, begin: 2, end: 14, every: 3, allow_regrow: true}",
    "iterative": "{kind: iterative, sparsity: 0.8, rounds: 2, to: 2}",
    "random": "{kind: random, sparsity: 0.8}",
    "snip": "{kind: snip, sparsity: 0.8}",
    "synflow": "{kind: synflow, sparsity: 0.8, rounds: 5}",
    "set": "{kind: set, sparsity: 0.8, every: 3}",
    "rigl": "{kind: rigl, sparsity: 0.8, every: 3}",
    "topkast": "{kind: topkast, sparsity: 0.8, every: 3}",
    "acdc": "{kind: acdc, sparsity: 0.8, begin: 3, phase: 2, last_dense: 12, end: 15}",
    "early_bird": "{kind: early_bird, sparsity: 0.8, every: 2, history: 2}",
    "2:4": "{kind: gradual, pattern: '2:4', begin: 2, end: 14, every: 3}",
}
GRADUAL = SCHEDULES["gradual"]


def check_resume(tmp_path, text, stops=(7, 17), **settings):
    """Die at each of `stops`, resume each time; state and artifact are those of a whole run."""
    whole = train(tmp_path / "whole", text, **settings)
    assert train(tmp_path / "cut", text, stop_after=stops[0], **settings) is None
    for stop in stops[1:]:
        assert train(tmp_path / "cut", text, stop_after=stop, resume=True, **settings) is None
    resumed = train(tmp_path / "cut", text, resume=True, **settings)
    assert same(state_of(whole), state_of(resumed))
    assert whole.loop.quality == resumed.loop.quality
    return whole


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_resumed_run_is_the_run(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    trained = check_resume(tmp_path, RECIPE.replace(GRADUAL, SCHEDULES[kind]))
    layers = [m for m in trained.loop.model.modules() if isinstance(m, CompactWeight)]
    assert len(layers) == (0 if kind == "none" else 2)


@pytest.mark.parametrize(
    "change",
    [
        "optimizer: {name: sgd, lr: 0.1, momentum: 0.9}",
        "optimizer: {name: lamb, lr: 0.01}",
        "optimizer: {name: lars, lr: 1.0}",
        "optimizer: {master: split}",
        "optimizer: {master: split8, moments: 8bit}",
        "precision: bf16",
        "precision: fp16",
        "accumulate: 3",
        "compaction: 'off'",
        "compaction: kernel",
        "compaction: resident",
        "checkpoint: {every: 5, asynchronous: true}",
        "model: {name: cnn, width: 4, layers: 2}",
    ],
)
def test_other_settings_resume_to_the_bit(tmp_path, monkeypatch, change):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    name = change.partition(":")[0]
    kept = [line for line in RECIPE.splitlines() if not line.strip().startswith(f"{name}:")]
    check_resume(tmp_path, "\n".join([*kept, f"      {change}"]))


TEXT = """\
gossamer: 1
stages:
  - train:
      task: {task}
      model: {{name: {model}, width: 16, layers: 1, heads: 2, context: 16}}
      data: {{tokens: {tokens}, vocabulary: 300}}
      steps: 24
      batch: 4
      accumulate: 2
      precision: bf16
      recompute: true
      schedule: {{kind: gradual, sparsity: 0.8, begin: 2, end: 14, every: 3}}
      checkpoint: {{every: 5}}
      optimizer: {{name: adamw, master: split, moments: 8bit}}
"""


@pytest.mark.parametrize(("task", "model"), [("text", "gpt"), ("labelled", "encoder")])
@pytest.mark.parametrize("tokens", [pytest.param("bytes", marks=pytest.mark.slow), "bpe"])
def test_texts_resume_to_the_bit_with_everything_switched_on(
    tmp_path, monkeypatch, task, model, tokens
):
    if tokens == "bpe":
        pytest.importorskip("tokenizers")
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    text = TEXT.format(task=task, model=model, tokens=tokens)
    trained = check_resume(tmp_path, text, data=f"zoo:{task}")
    layers = [m for m in trained.loop.model.modules() if isinstance(m, CompactWeight)]
    assert layers
    assert all(layer.values.dtype == torch.bfloat16 for layer in layers)


@pytest.mark.parametrize(
    "kind",
    [
        *("regrow", "topkast", "rigl"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gradual", "acdc", "iterative")),
    ],
)
def test_checkpoints_change_nothing(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    text = RECIPE.replace(GRADUAL, SCHEDULES[kind])
    often = train(tmp_path / "often", text.replace("every: 5", "every: 1"))
    never = train(tmp_path / "never", text.replace("every: 5", "every: 0"))
    assert same(state_of(often), state_of(never))


def test_epochs_are_counted_in_steps(tmp_path):
    text = RECIPE.replace("steps: 24", "epochs: 0.5").replace(GRADUAL, "null")
    assert train(tmp_path / "out", text).loop.step == round(0.5 * (2000 // 32))


def test_a_pruned_artifact_is_trained_with_its_masks_held(tmp_path):
    first = train(tmp_path / "first")
    gossamer.save(first.loop.model, tmp_path / "artifact")
    text = RECIPE.replace(GRADUAL, "null")
    words = {"given": lambda: gossamer.load(tmp_path / "artifact").train(), "given_name": "a"}
    second = check_resume(tmp_path, text, **words)
    layers = [
        [m for m in trained.loop.model.modules() if isinstance(m, CompactWeight)]
        for trained in (first, second)
    ]
    assert [m.mask_digest() for m in layers[0]] == [m.mask_digest() for m in layers[1]]
    assert not torch.equal(layers[0][0].values, layers[1][0].values)


def test_modes_are_recorded_and_not_measured_again(tmp_path, monkeypatch):
    import gossamer.training.loop.evaluation as module

    calls = []

    def choose(model, tokens, **_):
        calls.append(tokens)
        layers = [m for m in model.modules() if isinstance(m, CompactWeight)]
        for layer, mode in zip(layers, ("kernel", "jit"), strict=True):
            layer.mode = mode
        return []

    monkeypatch.setattr(module, "choose_modes", choose)
    # Right after compaction: the choice is on disk before a step is taken with it.
    assert train(tmp_path / "out", stop_after=15) is None
    resumed = train(tmp_path / "out", resume=True)
    assert calls == [32]
    layers = [m for m in resumed.loop.model.modules() if isinstance(m, CompactWeight)]
    assert [layer.mode for layer in layers] == ["kernel", "jit"]


def test_another_recipe_is_refused_with_the_difference(tmp_path):
    assert train(tmp_path / "out", stop_after=12) is None
    changed = RECIPE.replace("batch: 32", "batch: 16")
    with pytest.raises(RecipeError, match=r"stages\[0\]\.train\.batch: 32 -> 16") as caught:
        train(tmp_path / "out", changed, resume=True)
    assert "--allow-recipe-change" in str(caught.value)
    notes = []
    trained = train(tmp_path / "out", changed, resume=True, allow_change=True, notes=notes)
    assert any("batch: 32 -> 16" in note for note in notes)
    newest = CheckpointStore(tmp_path / "out.run" / "checkpoints").newest(pytest.fail)
    assert newest.run["changes"][0]["step"] == 10
    assert trained.loop.step == 24


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    assert train(tmp_path / "out", stop_after=12) is None
    with pytest.raises(InputError, match="Add --resume"):
        train(tmp_path / "out")


def test_damage_falls_back_to_the_checkpoint_before(tmp_path, monkeypatch):
    # Modes are measured again from a checkpoint before compaction; the fixed rule gives the same.
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    whole = train(tmp_path / "whole")
    assert train(tmp_path / "out", stop_after=12) is None
    path = tmp_path / "out.run" / "checkpoints" / "step_00000010" / "state.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 4
    path.write_bytes(raw)
    notes = []
    resumed = train(tmp_path / "out", resume=True, notes=notes)
    assert any("step 5 instead" in note for note in notes)
    assert same(state_of(whole), state_of(resumed))


def test_other_data_is_refused(tmp_path):
    assert train(tmp_path / "out", stop_after=12) is None
    path = tmp_path / "other.npz"
    numpy.savez(
        path,
        x_train=numpy.zeros((64, 12, 12), numpy.uint8),
        y_train=numpy.arange(64) % 6,
        x_test=numpy.zeros((8, 12, 12), numpy.uint8),
        y_test=numpy.zeros(8, int),
    )
    with pytest.raises(RecipeError, match=r"data: [0-9a-f]{8}\.\.\. -> [0-9a-f]{8}\.\.\."):
        train(tmp_path / "out", data=str(path), resume=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("counters"),
        lambda state: state.update(counters=[1]),
        lambda state: state["counters"].update(step="5"),
        lambda state: state["counters"].update(taken=-1),
        lambda state: state["counters"].update(losses=None),
        lambda state: state.pop("model"),
        lambda state: state["model"].popitem(),
        lambda state: state.update(model={"x": 1}),
        lambda state: state["optimizer"].update(param_groups=[]),
        lambda state: state["optimizer"].update(state={99: {}}),
        lambda state: state["optimizer"].update(state=None),
        lambda state: state.pop("random"),
        lambda state: state["random"].update(torch=torch.zeros(3, dtype=torch.uint8)),
        lambda state: state["random"]["python"].update(words=torch.zeros(2)),
    ],
)
def test_checkpoints_that_nobody_wrote_are_refused(tmp_path, change):
    """Well-formed and hashed, but not what a run saves."""
    assert train(tmp_path / "out", stop_after=6) is None
    store = CheckpointStore(tmp_path / "out.run" / "checkpoints")
    found = store.newest(pytest.fail)
    change(found.state)
    store.write(Snapshot.of(found.step, found.run, found.state))
    with pytest.raises((ArtifactError, InputError)):
        train(tmp_path / "out", resume=True)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    assert train(tmp_path / "out", stop_after=12) is None
    text = RECIPE.replace("width: 16", "width: 24")
    with pytest.raises(ArtifactError, match="not those of this model"):
        train(tmp_path / "out", text, resume=True, allow_change=True)
