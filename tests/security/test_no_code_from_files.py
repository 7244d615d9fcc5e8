# SPDX-License-Identifier: Apache-2.0
"""Nothing in a file is executed (F14): markers stay absent, text stays text."""

import ast
import json
import os
import pickle  # noqa: TID251 - to build the attack
from pathlib import Path

import pytest
import torch
from artifact_tools import edit_manifest, sparse_linear
from safetensors.torch import save_file
from torch import nn

import gossamer.io
from gossamer.errors import ArtifactError, GossamerError, InputError
from gossamer.io import load, load_pretrained, save
from gossamer.io.pruners import read_dense_checkpoint


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "marker"


@pytest.fixture
def artifact(tmp_path):
    save(nn.Sequential(sparse_linear("bitmask", "masked")), tmp_path / "a")
    return tmp_path / "a"


def payloads(marker: Path) -> dict[str, bytes]:
    touch = f"touch {marker}"
    return {
        "model.pkl": pickle.dumps(Bomb(marker)),
        "pytorch_model.bin": pickle.dumps(Bomb(marker)),
        "recipe.yaml": f"!!python/object/apply:os.system ['{touch}']\n".encode(),
        "config.yaml": f"!!python/object/new:os.system ['{touch}']\n".encode(),
        "sitecustomize.py": f"import os; os.system('{touch}')\n".encode(),
        "__init__.py": f"import os; os.system('{touch}')\n".encode(),
        "modeling.py": f"import os; os.system('{touch}')\n".encode(),
    }


def test_extra_files_are_refused_and_not_read(artifact, marker):
    for name, raw in payloads(marker).items():
        (artifact / name).write_bytes(raw)
        with pytest.raises(ArtifactError, match="unexpected"):
            load(artifact)
        (artifact / name).unlink()
    assert not marker.exists()
    load(artifact)


def test_payloads_in_the_place_of_our_files(artifact, marker):
    tensors = next(artifact.glob("*.safetensors")).name
    for name in ("manifest.json", tensors):
        good = (artifact / name).read_bytes()
        for raw in payloads(marker).values():
            (artifact / name).write_bytes(raw)
            with pytest.raises(ArtifactError):
                load(artifact)
        (artifact / name).write_bytes(good)
    assert not marker.exists()
    load(artifact)


def test_payloads_as_ordinary_checkpoints(tmp_path, marker):
    for number, (name, raw) in enumerate(payloads(marker).items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        for file in (name, "model.safetensors"):
            (folder / file).write_bytes(raw)
        for read in (load, load_pretrained, read_dense_checkpoint):
            with pytest.raises(GossamerError):
                read(folder)
            with pytest.raises(GossamerError):
                read(folder / name)
        with pytest.raises(GossamerError):
            load(folder, model=nn.Linear(2, 2))
    assert not marker.exists()


CODE = [
    "os:system",
    "os.system",
    "evil.py:Evil",
    "builtins:eval",
    "__import__('os').system('id')",
    "{{ 7 * 7 }}",
    "${jndi:ldap://localhost/x}",
    "{0.__class__}",
    "%s%n",
    "<script>alert(1)</script>",
]


@pytest.mark.parametrize("text", CODE)
@pytest.mark.parametrize("field", ["format", "pattern", "dtype", "holder", "kind", "layer", "zoo"])
def test_strings_that_name_code_are_refused_as_unknown(artifact, field, text):
    def change(content):
        entry = content["tensors"]["0.weight"]
        if field == "pattern":
            entry["mask"]["pattern"] = text
        elif field == "layer":
            content["architecture"]["children"][0]["name"] = text
        elif field == "zoo":
            content["architecture"] = {"kind": "zoo", "name": text, "args": {}, "key": ""}
        else:
            entry[field] = text

    edit_manifest(artifact, change)
    with pytest.raises(ArtifactError):
        load(artifact)


def test_template_text_in_layer_names_stays_text(tmp_path, marker):
    names = ["{{ 7 * 7 }}", "<img src=x onerror=alert(1)>", f"$(touch {marker})"[:40], "%(x)s{y}"]
    names = [name.replace(".", "_") for name in names]
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in names})
    model[names[0]] = nn.Sequential(sparse_linear("bitmask", "compact"))
    save(model, tmp_path / "a")
    again = load(tmp_path / "a")
    assert list(again) == names
    card = (tmp_path / "a" / "card.md").read_text()
    assert not any(name in card for name in names)
    assert "49" not in list(again)
    assert not marker.exists()
    with pytest.raises(ArtifactError) as caught:
        load(tmp_path / "a", model=nn.Linear(2, 2))
    assert str(caught.value).isascii()


def test_names_that_are_attributes_of_modules_touch_nothing(tmp_path):
    save(nn.Sequential(nn.Linear(2, 2)), tmp_path / "a")
    file = next((tmp_path / "a").glob("*.safetensors"))
    for name in ("__class__", "0.forward", "__dict__.x", "0.weight.data", "_parameters"):
        save_file({name: torch.zeros(2, 2)}, file)
        from artifact_tools import rehash

        rehash(tmp_path / "a")
        edit_manifest(
            tmp_path / "a",
            lambda content, name=name: content.update(
                tensors={
                    name: {
                        "kind": "dense",
                        "file": file.name,
                        "shape": [2, 2],
                        "dtype": "float32",
                    }
                }
            ),
        )
        model = nn.Sequential(nn.Linear(2, 2))
        with pytest.raises(ArtifactError, match="does not fit"):
            load(tmp_path / "a", model=model)
        with pytest.raises(ArtifactError, match="does not fit"):
            load(tmp_path / "a")
        model(torch.zeros(1, 2))


def test_links_and_devices_in_an_artifact_are_refused(artifact, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    tensors = next(artifact.glob("*.safetensors"))
    raw = tensors.read_bytes()
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes(raw)
    tensors.unlink()
    tensors.symlink_to(outside)
    with pytest.raises(ArtifactError, match="link, folder or device"):
        load(artifact)
    tensors.unlink()
    os.mkfifo(tensors)
    with pytest.raises(ArtifactError, match="link, folder or device"):
        load(artifact)
    tensors.unlink()
    tensors.write_bytes(raw)
    load(artifact)
    (artifact / "folder").mkdir()
    with pytest.raises(ArtifactError, match="link, folder or device"):
        load(artifact)
    (artifact / "folder").rmdir()
    (artifact / "manifest.json").unlink()
    (artifact / "manifest.json").symlink_to(secret)
    with pytest.raises(ArtifactError) as caught:
        load(artifact)
    assert "secret\n" not in str(caught.value)


def test_reader_modules_have_no_way_to_run_code():
    """No import of pickle, marshal, importlib.import_module, eval or exec anywhere in io."""
    banned_calls = {"eval", "exec", "compile", "__import__", "torch.load", "yaml.load"}
    banned_calls |= {"import_module", "importlib.import_module"}
    banned_imports = {"pickle", "marshal", "shelve", "dill", "joblib", "runpy", "subprocess"}
    for path in Path(gossamer.io.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in banned_calls, f"{path.name}: {called}"
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            assert not banned_imports & {module.split(".")[0] for module in modules}, path.name


def test_report_and_recipe_are_stored_as_data(artifact, tmp_path, marker):
    recipe = f"!!python/object/apply:os.system ['touch {marker}']"
    report = {"name": "<script>alert(1)</script>", "x": "{{ 7 * 7 }}"}
    save(load(artifact), tmp_path / "b", recipe=recipe, report=report)
    load(tmp_path / "b")
    assert json.loads((tmp_path / "b" / "report.json").read_text()) == report
    assert not marker.exists()
    with pytest.raises(InputError):
        save(load(artifact), tmp_path / "c", report={"x": Bomb(marker)})
    assert not marker.exists()
