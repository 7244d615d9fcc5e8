# SPDX-License-Identifier: Apache-2.0
"""`gossamer train`: what it writes, what it refuses, how it stops and goes on."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import gossamer
from gossamer.io.safe_files.directories import exclusive_lock
from gossamer.nn.layers import CompactWeight
from gossamer.training.checkpoint import read_checkpoint
from gossamer.training.run_files import read_metrics
from gossamer.zoo import GPT

RECIPE = """\
gossamer: 1
stages:
  - train:
      task: images
      model: {name: mlp, width: 16, layers: 2}
      steps: 20
      batch: 32
      schedule: {kind: gradual, sparsity: 0.8, begin: 2, end: 10, every: 2}
      checkpoint: {every: 5}
      evaluation: {every: 10}
      log_every: 5
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def test_a_run_writes_artifact_metrics_checkpoints_and_page(gossamer_cli, tmp_path, recipe):
    out = tmp_path / "out"
    ran = gossamer_cli("train", recipe, "--data", "zoo:images", "-o", out, "--json")
    assert ran.code == 0, ran.err
    document = ran.document
    assert document["command"] == "train"
    assert document["sparsity"] == pytest.approx(0.8, abs=0.01)
    assert document["training"]["steps"] == 20
    compaction = document["training"]["compaction"]
    assert compaction["bytes_after"] < compaction["bytes_before"]
    assert set(document["quality"]) == {"accuracy", "eval_loss"}
    model = gossamer.load(out)
    assert sum(isinstance(m, CompactWeight) for m in model.modules()) == 2
    assert model(torch.zeros(1, 144)).shape == (1, 6)
    kinds = {record["kind"] for record in read_metrics(tmp_path / "out.run" / "metrics.jsonl")}
    assert kinds >= {"step", "schedule", "evaluation", "compaction", "checkpoint"}
    assert (out / "card.md").exists()
    page = (tmp_path / "out.run" / "report.html").read_text()
    assert "loss" in page
    assert "http:" not in page.replace("http://www.w3.org", "")
    assert "https:" not in page


def test_people_see_quality_bytes_and_what_compaction_saved(gossamer_cli, tmp_path, recipe):
    ran = gossamer_cli("train", recipe, "--data", "zoo:images", "-o", tmp_path / "out")
    assert ran.code == 0
    for word in ("accuracy", "bytes of training state", "Saved to"):
        assert word in ran.out
    assert "training: done in" in ran.err


def test_dry_run_writes_nothing(gossamer_cli, tmp_path, recipe):
    before = sorted(tmp_path.rglob("*"))
    ran = gossamer_cli(
        "train", recipe, "--data", "zoo:images", "-o", tmp_path / "out", "--dry-run", "--json"
    )
    assert ran.code == 0, ran.err
    assert ran.document["written"] is False
    assert ran.document["steps"] == 20
    assert ran.document["parameters"] == 144 * 16 + 16 + 16 * 16 + 16 + 16 * 6 + 6
    assert ran.document["bytes"] < ran.document["bytes_dense"] * 0.5
    assert [path for path in sorted(tmp_path.rglob("*")) if "cache" not in str(path)] == before


def test_predicted_bytes_are_those_measured(gossamer_cli, tmp_path, recipe):
    words = ("train", recipe, "--data", "zoo:images", "-o", tmp_path / "out", "--json")
    big = ("--set", "stages.0.train.model.width=256")
    planned = gossamer_cli(*words, *big, "--dry-run").document["bytes"]
    assert gossamer_cli(*words, *big).code == 0
    records = read_metrics(tmp_path / "out.run" / "metrics.jsonl")
    measured = [r for r in records if r["kind"] == "compaction-effect"]
    measured = measured or [r for r in records if r["kind"] == "compaction"]
    assert planned == pytest.approx(measured[0]["bytes_after"], rel=0.15)


def test_resume_goes_on_and_refuses_another_recipe(gossamer_cli, tmp_path, recipe):
    words = ("train", recipe, "--data", "zoo:images", "-o", tmp_path / "out")
    assert gossamer_cli(*words, "-q").code == 0
    again = gossamer_cli(*words, "-q")
    assert again.code == 2
    assert "--resume" in again.err
    other = gossamer_cli(*words, "--resume", "--set", "stages.0.train.seed=3")
    assert other.code == 2
    assert "stages[0].train.seed: 0 -> 3" in other.err
    assert "--allow-recipe-change" in other.err
    longer = ("--set", "stages.0.train.steps=25", "--set", "stages.0.train.schedule=null")
    allowed = gossamer_cli(*words, "--resume", *longer, "--allow-recipe-change", "--json")
    assert allowed.code == 0, allowed.err
    assert allowed.document["training"]["steps"] == 25
    assert "changed" in allowed.err


MODULE = """
import torch
from torch import nn
from gossamer.data.batches import RepeatedBatches
from gossamer.data.tasks import Task

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 6))

def task():
    x = torch.randn(32, 10, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 10))
    return Task("echo", RepeatedBatches([x]), lambda m, b: (m(b) - b).square().mean(), model=model)

def number():
    return 3

def broken():
    return 1 / 0

value = 3
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    name = f"user_module_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_users_model_on_our_data(gossamer_cli, tmp_path, recipe, user_module):
    words = ("train", recipe, "-o", tmp_path / "out", "--model", f"{user_module}:build")
    ran = gossamer_cli(*words, "--data", "zoo:images", "-q")
    assert ran.code == 0, ran.err
    model = gossamer.load(tmp_path / "out")
    assert isinstance(model[1], CompactWeight)


def test_a_users_whole_task(gossamer_cli, tmp_path, recipe, user_module):
    words = ("train", recipe, "-o", tmp_path / "out", "--model", f"{user_module}:task")
    ran = gossamer_cli(*words, "--json")
    assert ran.code == 0, ran.err
    assert ran.document["quality"] == {}


def test_a_recipe_may_leave_the_model_to_the_command(gossamer_cli, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("gossamer: 1\nstages:\n  - train: {task: text, steps: 2, batch: 4}\n")
    given = GPT(256, width=16, num_heads=2, num_layers=1, context=8)
    gossamer.sparsify(given, sparsity=0.5)
    gossamer.save(given, tmp_path / "given")
    words = ("train", recipe, "--data", "zoo:text", "-o", tmp_path / "out")
    for dry in ("--dry-run", "-q"):
        ran = gossamer_cli(*words, dry)
        assert ran.code == 2
        assert "train.model: is missing" in ran.err
        ran = gossamer_cli(*words, dry, "--model", tmp_path / "given")
        assert ran.code == 0, ran.err
    # As long as the model's own, without a word in the recipe.
    assert gossamer.load(tmp_path / "out").context == 8


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_here:build", "cannot be imported"),
        ("{module}:nothing", "has no function 'nothing'"),
        ("{module}:value", "has no function 'value'"),
        ("{module}:number", "must return a torch module"),
        ("{module}:broken", "the function raised ZeroDivisionError"),
        ("no_such_folder", "no such file or directory"),
    ],
)
def test_models_that_cannot_be_had(gossamer_cli, tmp_path, recipe, user_module, name, message):
    words = ("train", recipe, "-o", tmp_path / "out", "--data", "zoo:images")
    ran = gossamer_cli(*words, "--model", name.format(module=user_module))
    assert ran.code in (2, 3)
    assert message in ran.err


FAULTS = """\
gossamer: 1
stages:
  - train:
      task: imags
      model: {name: mlp, width: 0, heads: 4}
      epochs: 2
      steps: 100
      batchh: 3
      optimizer: {name: adamw, momentum: 0.9, lr: fast}
      rate: {warmup: 200}
      schedule: {kind: gradual, sparsity: 90, begin: 50, end: 200}
      compaction: quick
"""


def test_all_faults_are_told_with_their_lines_and_without_torch(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(FAULTS)
    code = (
        "import sys; from gossamer.cli.main import main;"
        f"code = main(['train', {str(path)!r}, '--data', 'x', '-o', {str(tmp_path / 'out')!r}]);"
        "sys.exit(code if 'torch' not in sys.modules else 77)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 2, ran.stderr
    for line, words in [
        (4, "unknown task 'imags'. Did you mean 'images'?"),
        (5, "model.width: must be at least 1, got 0"),
        (5, "model.heads: mlp has none; it belongs to gpt, encoder"),
        (6, "epochs: steps is given too"),
        (8, "unknown key 'batchh'. Did you mean 'batch'?"),
        (9, "optimizer.momentum: adamw has none; it belongs to sgd, lars"),
        (9, "optimizer.lr: expected a number, got 'fast'"),
        (10, "rate.warmup: step 200 lies past the end of a run of 100 steps"),
        (11, "schedule.sparsity: must be in [0, 1), got 90. Write 0.9 for 90 %"),
        (11, "schedule.end: step 200 lies past the end"),
        (12, "unknown compaction 'quick'"),
    ]:
        told = [text for text in ran.stderr.splitlines() if words in text]
        assert told, (words, ran.stderr)
        assert f"bad.yaml:{line} " in told[0]
    assert not (tmp_path / "out.run").exists()


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("{kind: gradul, sparsity: 0.5}", "schedule.kind: unknown kind 'gradul'. Did you mean"),
        ("{sparsity: 0.5}", "schedule.kind: is missing; expected one of oneshot"),
        ("fast", "schedule: expected a mapping"),
        ("{kind: gradual, sparsity: 0.5, begin: 9, end: 3}", "schedule.end: 3 lies before begin 9"),
        (
            "{kind: gradual, sparsity: 0.3, initial_sparsity: 0.6}",
            "schedule.initial_sparsity: 0.6 is above sparsity 0.3",
        ),
        ("{kind: rigl, sparsity: 0.5, evry: 3}", "schedule.evry: unknown key 'evry'. Did you mean"),
        ("{kind: rigl}", "schedule.sparsity"),
        ("{kind: oneshot, pattern: '5:4'}", "schedule.pattern"),
    ],
)
def test_schedules_that_make_no_sense(gossamer_cli, tmp_path, schedule, words):
    path = tmp_path / "r.yaml"
    good = "{kind: gradual, sparsity: 0.8, begin: 2, end: 10, every: 2}"
    path.write_text(RECIPE.replace(good, schedule))
    ran = gossamer_cli("train", path, "--data", "zoo:images", "-o", tmp_path / "out")
    assert ran.code == 2
    assert words in ran.err
    assert "r.yaml:8 " in ran.err


def test_a_recipe_names_no_code(gossamer_cli, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE.replace("name: mlp", "name: os:system"))
    ran = gossamer_cli("train", path, "--data", "zoo:images", "-o", tmp_path / "out")
    assert ran.code == 2
    assert "unknown name 'os:system'" in ran.err


def test_recipes_that_prune_are_not_trained(gossamer_cli, tmp_path):
    ran = gossamer_cli("train", "magnitude-50", "--data", "zoo:images", "-o", tmp_path / "out")
    assert ran.code == 2
    assert "one stage, train; this recipe has prune" in ran.err


def write_npz(path, **changes):
    arrays = {
        "x_train": np.zeros((64, 4, 4), np.uint8),
        "y_train": np.zeros(64, np.int64),
        "x_test": np.zeros((8, 4, 4), np.uint8),
        "y_test": np.ones(8, np.int64),
        **changes,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def bad_data(folder):
    """Name -> (path, words of the message)."""
    text = folder / "text.txt"
    text.write_text("short")
    pickled = folder / "pickled.npz"
    np.savez(pickled, x_train=np.array([{}], dtype=object), allow_pickle=True)
    idx = folder / "idx"
    idx.mkdir()
    header = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (2, 4, 4))
    (idx / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + bytes(31)))
    nan = np.zeros((64, 4, 4), np.float32)
    nan[3, 2, 1] = np.nan
    return {
        "missing": (folder / "nothing.npz", "no such file"),
        "other": (text, "is no image data"),
        "no labels": (write_npz(folder / "a.npz", y_train=None), "y_train missing"),
        "few labels": (
            write_npz(folder / "b.npz", y_train=np.zeros(3, int)),
            "one for each of 64 images",
        ),
        "negative": (write_npz(folder / "c.npz", y_test=-np.ones(8, int)), "from 0"),
        "nan": (write_npz(folder / "d.npz", x_train=nan), "1 of 1024 values are NaN"),
        "sizes": (write_npz(folder / "e.npz", x_test=np.zeros((8, 5, 5), np.uint8)), "one size"),
        "flat": (write_npz(folder / "f.npz", x_train=np.zeros(64, np.uint8)), "[N, H, W]"),
        "pickled": (pickled, "missing"),
        "cut idx": (idx, "31 follow; it was truncated"),
        "few": (
            write_npz(
                folder / "g.npz",
                x_train=np.zeros((3, 4, 4), np.uint8),
                y_train=np.zeros(3, int),
            ),
            "3 samples do not make one batch of 32",
        ),
    }


def test_data_that_cannot_be_used(gossamer_cli, tmp_path, recipe):
    for name, (path, words) in bad_data(tmp_path).items():
        ran = gossamer_cli("train", recipe, "--data", path, "-o", tmp_path / "out")
        assert ran.code == 2, (name, ran.err)
        assert words in ran.err, (name, ran.err)
        assert not (tmp_path / "out.run").exists()
    ran = gossamer_cli("train", recipe, "-o", tmp_path / "out")
    assert ran.code == 2
    assert "--data zoo:images" in ran.err


def test_images_of_files_are_trained_on(gossamer_cli, tmp_path, recipe):
    folder = tmp_path / "idx"
    folder.mkdir()
    names = ("train", "t10k")
    for name, count in zip(names, (64, 8), strict=True):
        shape = (count, 4, 4)
        sizes = b"".join(n.to_bytes(4, "big") for n in shape)
        images = bytes([0, 0, 8, 3]) + sizes + bytes(range(16)) * count
        labels = bytes([0, 0, 8, 1]) + count.to_bytes(4, "big") + bytes([0, 1] * (count // 2))
        (folder / f"{name}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    for path in (folder, write_npz(tmp_path / "a.npz")):
        out = tmp_path / f"out-{path.name}"
        assert gossamer_cli("train", recipe, "--data", path, "-o", out, "-q").code == 0


@pytest.mark.parametrize("tokens", ["bytes", "bpe"])
@pytest.mark.parametrize("task", ["text", "labelled"])
def test_texts_of_files_are_trained_on(gossamer_cli, tmp_path, task, tokens):
    if tokens == "bpe":
        pytest.importorskip("tokenizers")
    path = tmp_path / ("text.txt" if task == "text" else "text.jsonl")
    lines = [f"line {number % 7} of {number % 3} words" for number in range(200)]
    if task == "labelled":
        lines = [json.dumps({"text": line, "label": n % 2}) for n, line in enumerate(lines)]
    path.write_text("\n".join(lines))
    name = "train-gpt" if task == "text" else "train-classifier"
    words = ["train", name, "--data", path, "-o", tmp_path / "out", "-q"]
    for change in ("batch=4", "model.width=16", "model.layers=1", "model.context=8"):
        words += ["--set", f"stages.0.train.{change}"]
    words += ["--set", "steps=6", "--set", f"stages.0.train.data.tokens={tokens}"]
    words += ["--set", "stages.0.train.data.vocabulary=300"]
    assert gossamer_cli(*words).code == 0
    assert (tmp_path / "out" / "tokenizer.json").exists() == (tokens == "bpe")
    assert gossamer_cli(*words, "--resume").code == 0


@pytest.mark.parametrize(("name", "sign"), [("a.csv", ","), ("a.tsv", "\t")])
def test_labelled_tables_are_trained_on_as_shrink_reads_them(gossamer_cli, tmp_path, name, sign):
    path = tmp_path / name
    lines = [f"line {n % 7} of {n % 3} words{sign}{n % 2}" for n in range(40)]
    path.write_text("\n".join([f"text{sign}label", *lines]))
    words = ["train", "train-classifier", "--data", path, "-q", "--set", "steps=2"]
    for change in ("batch=4", "model.width=16", "model.layers=1", "model.context=8"):
        words += ["--set", f"stages.0.train.{change}"]
    assert gossamer_cli(*words, "-o", tmp_path / "out").code == 0
    path.write_text("\n".join([f"text{sign}label", lines[0], f"a{sign}good"]))
    ran = gossamer_cli(*words, "-o", tmp_path / "other")
    assert ran.code == 2
    assert f"{name}:3: label must be a whole number in [0, 10000), got 'good'" in ran.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("not json", ":2: not valid JSON"),
        ('{"text": "a"}', ":2: expected a text and a label"),
        ('{"text": "a", "label": -1}', ":2: expected a text and a label"),
        ('{"text": "a", "label": true}', ":2: expected a text and a label"),
    ],
)
def test_labelled_lines_that_cannot_be_read(gossamer_cli, tmp_path, line, words):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": 0}\n' + line)
    ran = gossamer_cli("train", "train-classifier", "--data", path, "-o", tmp_path / "out")
    assert ran.code == 2
    assert words in ran.err


def test_an_output_that_cannot_be_written_is_found_before_the_first_step(
    gossamer_cli, tmp_path, recipe
):
    (tmp_path / "file").write_text("")
    words = ("train", recipe, "--data", "zoo:images", "-o")
    ran = gossamer_cli(*words, tmp_path / "file" / "out")
    assert ran.code == 4
    assert "cannot be written" in ran.err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    ran = gossamer_cli(*words, tmp_path / "mine")
    assert ran.code == 3
    assert "not a gossamer artifact" in ran.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    assert "training" not in ran.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_found_before_the_first_step(gossamer_cli, tmp_path, recipe):
    (tmp_path / "locked").mkdir(mode=0o500)
    ran = gossamer_cli("train", recipe, "--data", "zoo:images", "-o", tmp_path / "locked" / "out")
    assert ran.code == 4


def test_two_runs_do_not_share_a_folder(gossamer_cli, tmp_path, recipe):
    with exclusive_lock(tmp_path / "out.run"):
        ran = gossamer_cli("train", recipe, "--data", "zoo:images", "-o", tmp_path / "out")
    assert ran.code == 4
    assert "another process" in ran.err


def test_too_little_space_is_found_before_the_first_step(
    gossamer_cli, tmp_path, recipe, monkeypatch
):
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5000))
    ran = gossamer_cli("train", recipe, "--data", "zoo:images", "-o", tmp_path / "out")
    assert ran.code == 4
    assert "free 5000" in ran.err
    assert "Nothing was trained" in ran.err


def test_out_of_memory_names_the_phase(gossamer_cli, tmp_path, recipe, monkeypatch):
    def refuse(*_):
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"
        )

    monkeypatch.setattr("gossamer.runs.training.request.build_model", refuse)
    ran = gossamer_cli("train", recipe, "--data", "zoo:images", "-o", tmp_path / "out")
    assert ran.code == 4
    assert "building the model: out of memory, an allocation of 99 bytes failed" in ran.err


def start(recipe, out, steps=100000):
    words = ["train", str(recipe), "--data", "zoo:images", "-o", str(out), "-q"]
    words += ["--set", f"stages.0.train.steps={steps}"]
    return subprocess.Popen(
        [sys.executable, "-m", "gossamer.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for_steps(out, process, seconds=100):
    path = out.with_name(f"{out.name}.run") / "metrics.jsonl"
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, process.stderr.read()
        if path.exists() and path.stat().st_size > 1000:
            return
        time.sleep(0.05)
    raise AssertionError("the run did not start")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_saves_and_prints_the_command_that_goes_on(tmp_path, recipe, number, code):
    out = tmp_path / "out"
    process = start(recipe, out)
    wait_for_steps(out, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "its state is saved" in errors
    command = errors.strip().splitlines()[-1].strip()
    assert command.startswith("gossamer train")
    assert command.endswith("--resume")
    assert "Traceback" not in errors
    newest = max(p.name for p in (tmp_path / "out.run" / "checkpoints").iterdir())
    assert f"after step {int(newest.removeprefix('step_'))};" in errors


def test_a_second_signal_stops_at_once(tmp_path, recipe):
    # One step takes long, so that the first signal is still being waited for.
    (tmp_path / "slow_model.py").write_text(
        "import time\n"
        "from torch import nn\n"
        "class Slow(nn.Sequential):\n"
        "    def forward(self, x):\n"
        "        self.calls = getattr(self, 'calls', 0) + 1\n"
        "        for _ in range(600 if self.calls > 8 else 0):\n"
        "            time.sleep(0.1)\n"
        "        return super().forward(x)\n"
        "def build():\n"
        "    return Slow(nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 6))\n"
    )
    out = tmp_path / "out"
    words = ["train", str(recipe), "--data", "zoo:images", "-o", str(out), "-q"]
    words += ["--set", "stages.0.train.log_every=1", "--model", "slow_model:build"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer.cli.main", *words],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    wait_for_steps(out, process)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert process.returncode == 130
    assert "stopped at once" in errors
    folder = tmp_path / "out.run" / "checkpoints" / "step_00000005"
    assert read_checkpoint(folder).step == 5
