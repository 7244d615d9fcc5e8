# SPDX-License-Identifier: Apache-2.0
"""`gossamer.prune` and `gossamer.train` are what the commands of these names call."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import gossamer
from gossamer.cli.main import main
from gossamer.errors import GossamerError, InputError
from gossamer.ops.timing import Duel
from gossamer.pruning.calibration.journal import DiskJournal
from gossamer.recipes import load_recipe
from gossamer.runs.sources import Source
from gossamer.runs.stages import StageInput
from gossamer.zoo import MLP

TRAIN = """
gossamer: 1
stages:
  - train:
      task: images
      model: {name: mlp, width: 32, layers: 2}
      steps: 12
      batch: 16
      schedule: {kind: gradual, sparsity: 0.8, begin: 2, end: 8, every: 2}
      checkpoint: {every: 4}
"""


@pytest.fixture(autouse=True)
def quiet_machine(tmp_path, monkeypatch):
    """No choice and no number depends on a clock."""
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("gossamer.runs.executor.duel", lambda *calls, **settings: Duel(2.0, 1.0))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    gossamer.save(MLP((32, 64, 64, 8)), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def encoder(tmp_path):
    from gossamer.zoo import TinyEncoder

    torch.manual_seed(0)
    gossamer.save(TinyEncoder(100, 4, width=32, num_layers=2, ffn_width=64), tmp_path / "encoder")
    ids = torch.randint(100, (12, 8), generator=torch.Generator().manual_seed(0))
    save_file({"input_ids": ids}, tmp_path / "ids.safetensors")
    return tmp_path / "encoder"


def assert_same_files(one: Path, two: Path):
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in two.iterdir())
    assert "manifest.json" in names
    for name in names:
        told = (one / name).read_bytes().replace(one.name.encode(), two.name.encode())
        if name != "manifest.json":
            assert told == (two / name).read_bytes(), name
    tensors = [path.name for path in one.glob("*.safetensors")]
    assert tensors
    for name in tensors:
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_prune_explains_the_model_that_it_timed(model, tmp_path, monkeypatch):
    from gossamer.runs import executor
    from gossamer.runs.pruning import run

    made, explained, explain = [], [], run.explain

    def compiling(model, *args, **settings):
        made.append(executor_compiles(model, *args, **settings))
        return made[-1]

    def explaining(model):
        explained.append(model)
        return explain(model)

    executor_compiles = executor.compile_model
    monkeypatch.setattr(executor, "compile_model", compiling)
    monkeypatch.setattr(run, "compile_model", None)
    monkeypatch.setattr(run, "explain", explaining)
    gossamer.prune(model, sparsity=0.9, out=tmp_path / "pruned")
    # The dense twin, and the pruned one.
    assert len(made) == 2
    assert explained[0] is made[1]


def test_prune_and_its_command_write_the_same_files(model):
    report = gossamer.prune(model, sparsity=0.75, budget="global", ignore=["layers.0"], out="verb1")
    options = ["--sparsity", "0.75", "--budget", "global", "--ignore", "layers.0"]
    assert main(["prune", str(model), "-o", "comm1", *options, "-q"]) == 0
    assert report.sparsity == 0.75
    assert report.ms_sparse is not None
    assert_same_files(Path("verb1"), Path("comm1"))


def test_prune_with_a_recipe_and_data_writes_the_same_files(encoder):
    settings = ["calibration.samples=4", "calibration.tokens=8"]
    report = gossamer.prune(
        encoder, "sparsegpt-50", data="ids.safetensors", out="verb1", overrides=settings
    )
    words = [word for setting in settings for word in ("--set", setting)]
    command = ["prune", str(encoder), "-o", "comm1", "--recipe", "sparsegpt-50"]
    assert main([*command, "--data", "ids.safetensors", *words, "-q"]) == 0
    assert report.sparsity == 0.5
    assert_same_files(Path("verb1"), Path("comm1"))
    assert not Path("verb1.journal").exists()


def test_prune_takes_modules_batches_mappings_and_recipes(model):
    net, said = gossamer.load(model), []
    batches = [torch.randn(16, 32) for _ in range(3)]
    stages = [{"prune": {"method": "wanda", "sparsity": 0.3}}]
    report = gossamer.prune(
        net, {"gossamer": 1, "stages": stages}, data=batches, out="pruned", say=said.append
    )
    assert report.sparsity == pytest.approx(0.3, abs=1e-3)
    assert said == [
        "At 30% zeros dense kernels are usually faster: expect a smaller file and no speed-up."
    ]
    x = torch.randn(4, 32)
    with torch.no_grad():
        assert torch.equal(gossamer.load("pruned")(x), net(x))
    again = gossamer.prune(
        gossamer.load(model), load_recipe("wanda-50"), data=batches, out="pruned"
    )
    assert again.sparsity == pytest.approx(0.5, abs=1e-3)


def test_train_and_its_command_write_the_same_bytes():
    Path("tiny.yaml").write_text(TRAIN)
    result = gossamer.train("tiny.yaml", "zoo:images", out="verb1")
    assert main(["train", "tiny.yaml", "--data", "zoo:images", "-o", "comm1", "-q"]) == 0
    assert_same_files(Path("verb1"), Path("comm1"))
    assert result.report.sparsity == pytest.approx(0.8, abs=0.01)
    assert result.path == Path("verb1")
    assert result.steps == 12
    assert result.quality
    assert not result.resumed
    assert result.page.exists()


def test_train_continues_and_starts_from_a_function():
    Path("tiny.yaml").write_text(TRAIN)
    calls = []

    def build():
        calls.append(1)
        torch.manual_seed(1)
        return MLP((144, 16, 8))

    first = gossamer.train("tiny.yaml", "zoo:images", out="own", model=build)
    assert calls == [1]
    assert first.report.layers
    again = gossamer.train("tiny.yaml", "zoo:images", out="own", model=build, resume=True)
    assert again.resumed
    assert again.steps == 12


MISTAKES = {
    "no such model": (["prune", "nowhere", "-o", "out", "--sparsity", "0.5"], "nowhere", {}),
    "percentage": (
        ["prune", "model", "-o", "out", "--recipe", "wanda-50", "--set", "sparsity=50"],
        "model",
        {"recipe": "wanda-50", "overrides": ["sparsity=50"], "data": "ids.safetensors"},
    ),
    "no data": (
        ["prune", "model", "-o", "out", "--recipe", "wanda-50"],
        "model",
        {"recipe": "wanda-50"},
    ),
    "a train stage": (
        ["prune", "model", "-o", "out", "--recipe", "train-gradual"],
        "model",
        {"recipe": "train-gradual"},
    ),
    "a flag and a recipe": (
        ["prune", "model", "-o", "out", "--recipe", "wanda-50", "--sparsity", "0.5"],
        "model",
        {"recipe": "wanda-50", "sparsity": 0.5},
    ),
    "unknown scorer": (
        ["prune", "model", "-o", "out", "--sparsity", "0.5", "--scorer", "wand"],
        "model",
        {"sparsity": 0.5, "scorer": "wand"},
    ),
    "no sparsity": (["prune", "model", "-o", "out"], "model", {}),
    "a file that is not there": (
        [*["prune", "model", "-o", "out", "--recipe", "wanda-50", "--data", "nope.txt"]],
        "model",
        {"recipe": "wanda-50", "data": "nope.txt"},
    ),
    "a folder that is no artifact": (
        ["prune", "model", "-o", "taken", "--sparsity", "0.5"],
        "model",
        {"sparsity": 0.5, "out": "taken"},
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_prune_refuses_in_the_words_of_the_command(mistake, model, capsys):
    Path("taken").mkdir()
    Path("taken/mine.txt").write_text("mine")
    line, source, arguments = MISTAKES[mistake]
    if mistake == "no such model":
        arguments = {"sparsity": 0.5}
    with pytest.raises(GossamerError) as caught:
        gossamer.prune(source, **{"out": "out", **arguments})
    assert main([*line, "-q"]) != 0
    words = " ".join(capsys.readouterr().err.split())
    # Where a path may stand the command line takes more than a path.
    told = str(caught.value).removesuffix(".") if mistake == "no such model" else str(caught.value)
    assert " ".join(told.split()) in words
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("train wanda-50 --data zoo:images -o out", ("wanda-50", "zoo:images")),
        ("train tiny.yaml --data zoo:text -o out", ("tiny.yaml", "zoo:text")),
        ("train tiny.yaml --data nope.npz -o out", ("tiny.yaml", "nope.npz")),
        ("train tiny.yaml -o out", ("tiny.yaml",)),
        ("train tinny.yaml -o out", ("tinny.yaml",)),
    ],
)
def test_train_refuses_in_the_words_of_the_command(line, arguments, capsys):
    Path("tiny.yaml").write_text(TRAIN)
    with pytest.raises(GossamerError) as caught:
        gossamer.train(*arguments, out="out")
    assert main([*line.split(), "-q"]) != 0
    words = " ".join(capsys.readouterr().err.split())
    assert " ".join(str(caught.value).split()) in words
    assert not Path("out").exists()


def test_no_submodule_takes_the_place_of_a_verb():
    for module in pkgutil.walk_packages(gossamer.__path__, "gossamer."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    verbs = [
        name
        for name in gossamer.__all__
        if name not in ("errors", "graph", "nn", "register", "testing")
    ]
    for name in verbs:
        assert callable(getattr(gossamer, name)), name
    with pytest.raises(GossamerError, match=r"expected a torch\.nn\.Module or a path"):
        gossamer.prune(3, sparsity=0.5, out="out")
    with pytest.raises(GossamerError, match="carries out one stage"):
        gossamer.train("wanda-50", out="out")


def test_under_torchrun_only_the_leading_rank_gets_a_result():
    Path("tiny.yaml").write_text(TRAIN + "      mesh: {data: 2}\n")
    Path("script.py").write_text(
        "import os, gossamer\n"
        "result = gossamer.train('tiny.yaml', 'zoo:images', out='grid')\n"
        "assert (result is None) == (os.environ['RANK'] == '1')\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert gossamer.load("grid")(torch.randn(2, 144)).ndim == 2


def test_prune_without_times_saves_the_model_alone(encoder, tmp_path):
    source = Source(gossamer.load(encoder), "mine", None, {"tokenizer.json": b"{}"})
    report = gossamer.prune(source, sparsity=0.5, out=tmp_path / "alone", timed=False)
    assert report.ms_dense is None
    assert report.sparsity == pytest.approx(0.5)
    names = {path.name for path in (tmp_path / "alone").iterdir()}
    assert "tokenizer.json" in names
    assert "report.json" not in names
    gossamer.prune(encoder, sparsity=0.5, out=tmp_path / "timed")
    assert "report.json" in {path.name for path in (tmp_path / "timed").iterdir()}
    one, two = (
        next((tmp_path / name).glob("*.safetensors")).read_bytes() for name in ("alone", "timed")
    )
    assert one == two


def test_prune_with_a_run_of_the_callers(encoder, tmp_path):
    """Its journal, its progress, its end."""

    class Enough(Exception):
        pass

    seen = []

    def progress(done):
        seen.append(done.index)
        if len(seen) == 2:
            raise Enough

    recipe = load_recipe("sparsegpt-50", ["stages[0].prune.targets=Linear"])
    batches = [
        torch.randint(100, (2, 8), generator=torch.Generator().manual_seed(i)) for i in (0, 1)
    ]
    folder, out = tmp_path / "journal", tmp_path / "out"

    def given(**more):
        return StageInput(journal=DiskJournal(folder, {"run": "mine"}), **more)

    settings = {"data": batches, "out": out, "timed": False}
    with pytest.raises(Enough):
        gossamer.prune(encoder, recipe, given=given(progress=progress), **settings)
    assert folder.exists()
    assert not out.exists()
    assert not out.with_name("out.journal").exists()
    gossamer.prune(encoder, recipe, given=given(), **settings)
    gossamer.prune(encoder, recipe, **settings | {"out": tmp_path / "at-once"})
    one, two = (
        next(path.glob("*.safetensors")).read_bytes() for path in (out, tmp_path / "at-once")
    )
    assert one == two


@pytest.mark.parametrize("more", [{"resume": True}, {"teacher": MLP((4, 4))}], ids=str)
def test_a_run_of_the_callers_says_itself_where_it_goes_on(encoder, tmp_path, more):
    with pytest.raises(InputError, match="given: says itself"):
        gossamer.prune(encoder, sparsity=0.5, out=tmp_path / "out", given=StageInput(), **more)
