# SPDX-License-Identifier: Apache-2.0
"""Every reader and every command on directories whose files are links to a secret, or no files."""

import ast
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

import gossamer
from gossamer.cli.main import main
from gossamer.errors import GossamerError
from gossamer.io import load, load_pretrained, read_beside
from gossamer.io.artifact.beside import BESIDE_FILES
from gossamer.io.loading import load_skeleton
from gossamer.io.pruners import read_dense_checkpoint
from gossamer.named_files import open_inside

pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[1] / "running"))
from text_models import save_encoder

SECRET = "TOKEN=0123456789abcdef"  # noqa: S105
SOURCE = Path(gossamer.__file__).parent
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("models") / "encoder")


@pytest.fixture
def model(encoder, tmp_path):
    return Path(shutil.copytree(encoder, tmp_path / "model"))


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "elsewhere" / "secret"
    path.parent.mkdir()
    path.write_text(SECRET)
    return path


def shard(model):
    """The weights as one shard behind an index."""
    names = list(gossamer.io.pruners.dense_checkpoint.read_tensors_of(model))
    (model / WEIGHTS).rename(model / "part.safetensors")
    (model / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, "part.safetensors")}))


def put_link(path, target):
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def put_pipe(path, target):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def put_folder(path, target):
    path.unlink(missing_ok=True)
    path.mkdir()


READERS = {
    "load": load,
    "load_pretrained": load_pretrained,
    "read_dense_checkpoint": read_dense_checkpoint,
    "load into": lambda path: load(path, torch.nn.Linear(2, 2)),
    "skeleton": load_skeleton,
    "beside": read_beside,
}
# What each reader must look at; a file that it never opens cannot leak through it.
LOOKS_AT = {
    "load": ("config.json", WEIGHTS, INDEX, "part.safetensors"),
    "load_pretrained": ("config.json", WEIGHTS, INDEX, "part.safetensors"),
    "read_dense_checkpoint": (WEIGHTS, INDEX, "part.safetensors"),
    "load into": (WEIGHTS, INDEX, "part.safetensors"),
    "skeleton": ("config.json",),
    "beside": tuple(sorted(BESIDE_FILES)),
}


@pytest.mark.parametrize("put", [put_link, put_pipe, put_folder])
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_refuses_every_file_by_name(model, secret, reader, put):
    for name in LOOKS_AT[reader]:
        work = Path(shutil.copytree(model, model.with_name("work")))
        if name in (INDEX, "part.safetensors"):
            shard(work)
        put(work / name, secret)
        with pytest.raises(GossamerError) as caught:
            READERS[reader](work)
        message = str(caught.value)
        assert name in message
        assert SECRET not in message
        assert ("outside" if put is put_link else "no regular file") in message
        shutil.rmtree(work)


def test_links_into_the_hub_cache_load(encoder, tmp_path):
    repository = tmp_path / "models--org--encoder"
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    shutil.copytree(encoder, repository / "blobs")
    for path in (repository / "blobs").iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    ids = torch.arange(5)[None]
    with torch.no_grad():
        found = load(snapshot)(ids).last_hidden_state
        assert torch.equal(found, load(encoder)(ids).last_hidden_state)
    assert read_beside(snapshot) == read_beside(encoder)
    assert main(["convert", str(snapshot), str(tmp_path / "out")]) == 0


# Every command that takes a model; {m} is its directory, {o} a place for what it writes.
COMMANDS = {
    "prune": "prune {m} -o {o} --sparsity 0.5",
    "prune dense": "prune {m} -o {o} --sparsity 0.5 --format dense",
    "convert": "convert {m} {o}",
    "convert dense": "convert {m} {o} --format dense",
    "convert compressed": "convert {m} {o} --format compressed-tensors",
    "shrink": "shrink {m} --data {d} -o {o} --budget 2min",
    "explain": "explain {m}",
    "encode": "run encode {m} {d} -o {o}.npy",
    "complete": "run complete {m} --prompt a",
    "chat": "run chat {m}",
    "serve": "run serve {m} --port 0",
    "bench": "bench model {m}",
    "plan": "plan {m} --cluster workstations --batch 64",
    "train": "train train-gradual --model {m} --data zoo:images -o {o}",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", WEIGHTS])
def test_no_command_lets_a_secret_out(model, secret, tmp_path, capfd, command, name):
    put_link(model / name, secret)
    data = tmp_path / "data.txt"
    data.write_text("the dog runs\n" * 200)
    line = COMMANDS[command].format(m=model, o=tmp_path / "out", d=data)
    code = main(line.split())
    printed = "".join(capfd.readouterr())
    assert SECRET not in printed
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.is_symlink() and path != secret:
            assert SECRET.encode() not in path.read_bytes()
    if command == "plan" and name != "config.json":
        return  # shapes need neither weights nor tokenizer
    assert code == 3, printed
    assert f"{name}: is a link to {secret}" in printed


# Names of functions and methods that open or parse; `load` and `loads` by their modules only.
FUNCTIONS = {"open", "load_file", "safe_open"}
METHODS = FUNCTIONS | {"fdopen", "read_bytes", "read_text", "from_file", "fromfile", "memmap"}
METHODS |= {"mmap", "GzipFile"}
METHODS |= {"copy2", "copyfile", "copytree", "ZipFile", "from_buffer", "from_str", "safe_load"}
CALLS = {"json.load", "json.loads", "np.load", "numpy.load", "torch.load", "yaml.load"}
CALLS |= {"shutil.copy"}


def opening_calls(path):
    """What a file calls that opens or parses a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            last = called.rpartition(".")[2]
            if called in FUNCTIONS | CALLS or (last in METHODS and "." in called):
                yield called


# Who may open, and why no file of a model or of a user goes past the doors there.
DOORS = {
    "named_files.py": "the door for files",
    "io/safe_files/documents.py": "the door for JSON",
    "io/safe_files/tokenizer.py": "the door for tokenizers",
    "io/safe_files/arrays.py": "the door for .npz, opened by the door for files",
    "io/safe_files/manifests.py": "artifacts: opened without following any link",
}
NOT_FILES_OF_OTHERS = {
    "io/safe_files/directories.py": "writes, and a lock of our own",
    "io/safe_files/tensors.py": "writes",
    "io/artifact/exports.py": "makes what was just written durable",
    "io/gguf/writing.py": "makes what was just written durable",
    "running/server/compare.py": "a page of the package",
    "runs/zoo/making.py": "an artifact that was just made",
    "running/store/folder.py": "the cache of this user: without following links, private, hashed",
    "running/store/parts.py": "maps of files that the folder above opened",
    "running/store/identity.py": "the native module of the package",
    "io/safe_files/on_disk.py": "files without a name, and maps of files that the doors opened",
    "io/safe_files/checks.py": "/proc/meminfo",
    "training/run_files.py": "appends",
    "data/clicks/cache.py": "writes, and reads its own arrays once their hashes are right",
    "zoo/problems/clicks.py": "writes",
    "running/choice.py": "writes",
    "runs/pruning/plan.py": "/proc",
    "planner/calibration.py": "/proc",
    "ops/kernels.py": "/proc/cpuinfo",
    "cli/doctor/health.py": "/proc",
    "recipes/loader.py": "recipes of the package",
    "cli/recipe.py": "writes",
    "planner/cluster.py": "clusters of the package",
    "search/shrinking.py": "copies an artifact that was just loaded: regular files only",
    "cli/quickstart/output.py": "looks for its own mark in a page it would replace",
    "data/files/image_files.py": "gzip over a file that the door opened",
    "training/distributed/processes/watch.py": "messages of other ranks",
    "training/distributed/processes/messages.py": "messages of other ranks",
    "running/rivals/engines.py": "answers and files of a process that we started",
    "running/text/chat/template_process.py": "answers of a process that we started",
    "running/text/chat/template_worker.py": "questions of the process that started it",
    "running/text/special_tokens.py": "a tokenizer that its door made, described by its package",
    "ops/timing/load.py": "/proc",
    "io/pruners/foreign_file.py": "names in an archive that the user named",
    "nn/layers/tables/late_rows.py": "memory without a file",
}


def test_nothing_opens_files_past_the_doors():
    """A new place that opens files goes through `gossamer.named_files`, or says here why not."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if not name.startswith(("testing/", "running/rivals/engine_scripts/")) and set(
            opening_calls(path)
        ):
            found[name] = set(opening_calls(path))
    assert set(found) == set(DOORS | NOT_FILES_OF_OTHERS)
    for name, why in NOT_FILES_OF_OTHERS.items():
        if why in ("writes", "appends"):
            reading = ("read_bytes", "read_text", "loads", "load")
            assert not any(called.rpartition(".")[2] in reading for called in found[name])


def test_the_server_refuses_before_it_listens(model, secret, capfd):
    put_link(model / "tokenizer_config.json", secret)
    assert main(["run", "serve", str(model), "--port", "0"]) == 3
    assert "tokenizer_config.json: is a link" in capfd.readouterr().err


def test_a_link_beside_an_onnx_file(encoder, secret, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "x.onnx").write_bytes(b"")
    (tmp_path / "m" / "tokenizer.json").symlink_to(secret)
    with pytest.raises(GossamerError, match="outside of the directory"):
        read_beside(tmp_path / "m" / "x.onnx")
    with pytest.raises(GossamerError, match="outside of the directory"):
        open_inside(tmp_path / "m", "tokenizer.json")


def test_files_of_the_hub_cache_keep_their_kind(tmp_path):
    """A gguf or ONNX file there is a link to a blob without an ending."""
    pytest.importorskip("onnx")
    sys.path.append(str(Path(__file__).parents[1] / "io"))
    from onnx_tools import Maker

    repository = tmp_path / "models--org--linear"
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    make = Maker(14)
    x = make.input("x", ["n", 4])
    make.result(make.op("MatMul", x, make.const(torch.ones(4, 3).numpy(), "w", "float32")), "y")
    make.write(repository / "blobs" / "0f")
    (repository / "blobs" / "1e").write_text("words")
    (snapshot / "m.onnx").symlink_to("../../blobs/0f")
    (snapshot / "vocab.txt").symlink_to("../../blobs/1e")
    assert load(snapshot / "m.onnx")(torch.ones(2, 4)).tolist() == [[4.0] * 3] * 2
    assert read_beside(snapshot / "m.onnx") == {"vocab.txt": b"words"}
