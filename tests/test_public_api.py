# SPDX-License-Identifier: Apache-2.0
"""The public names: frozen, lazy, and callable twice, whatever was imported before."""

import importlib
import pkgutil
import subprocess
import sys

import pytest
import torch
from torch import nn

import gossamer
from gossamer.patterns import Unstructured

GOLDEN = [
    *(
        "attach",
        "attention",
        "compact",
        "compile",
        "errors",
        "explain",
        "graph",
        "grow",
        "load",
        "nn",
        "plan",
        "prune",
        "register",
        "save",
        "shrink",
        "sparsify",
    ),
    *("strict", "testing", "train", "verify_growth"),
]


def all_submodules():
    names = [module.name for module in pkgutil.walk_packages(gossamer.__path__, "gossamer.")]
    return [name for name in names if not name.endswith("__main__")]


def test_public_names_are_the_golden_list():
    assert sorted(gossamer.__all__) == GOLDEN
    assert set(GOLDEN) <= set(dir(gossamer))
    assert len(GOLDEN) <= 20


def test_import_gossamer_does_not_import_torch():
    probe = (
        "import sys, gossamer, gossamer.errors, gossamer.settings; dir(gossamer);"
        "print([name for name in ('torch', 'numpy', 'rich', 'click') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'prunify'"):
        gossamer.prunify  # noqa: B018


def test_no_public_function_shares_its_name_with_a_submodule():
    modules = {name.split(".")[1] for name in all_submodules()}
    functions = [name for name in GOLDEN if callable(getattr(gossamer, name))]
    assert not modules & set(functions)


def use_every_name(folder):
    """Each public function, called as a user would."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    report = gossamer.sparsify(model, sparsity=0.5)
    assert report.sparsity == 0.5
    assert gossamer.compact(model, optimizer).compacted == ["0", "2"]
    gossamer.save(model, folder / "model")
    loaded = gossamer.load(folder / "model")
    with gossamer.strict():
        fast = gossamer.compile(loaded, tokens=4)
    assert len(gossamer.explain(fast)) == 2
    x = torch.randn(4, 8)
    with torch.inference_mode():
        assert torch.allclose(fast(x), model(x), atol=1e-5)
    assert isinstance(model[0], gossamer.nn.Linear)
    gossamer.testing.check_format("bitmask", patterns=[Unstructured()])
    assert callable(gossamer.register.scorer)
    assert gossamer.plan("gpt3-xl", "dgx-like", batch=128).states[0].best is not None
    with pytest.raises(gossamer.errors.GossamerError):
        gossamer.sparsify(model, sparsity=50)


def test_every_public_name_works_twice_and_after_importing_every_submodule(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    before = {name: getattr(gossamer, name) for name in GOLDEN}
    use_every_name(tmp_path)
    use_every_name(tmp_path)
    for name in all_submodules():
        importlib.import_module(name)
    use_every_name(tmp_path)
    assert {name: getattr(gossamer, name) for name in GOLDEN} == before
