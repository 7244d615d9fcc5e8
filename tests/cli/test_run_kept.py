# SPDX-License-Identifier: Apache-2.0
"""The second start of a text command: the same text, whatever happens to the cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_run_text import artifact, tokenizer_files

from gossamer.cli.main import main

_PROGRAM = """
import sys
from gossamer.cli.main import main
code = main(sys.argv[1:])
loaded = [name for name in ("torch", "transformers") if name in sys.modules]
print(",".join(loaded) or "neither", file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def words(tmp_path):
    model = artifact(tmp_path / "model", tokenizer_files())
    return ["run", "complete", model, "--prompt", "abc", "--max-tokens", "5", "--json"]


def text_of(words, capsys):
    """The text that a command gives, and what it told people."""
    capsys.readouterr()
    assert main(words) == 0
    out, err = capsys.readouterr()
    return json.loads(out)["text"], err


def kept(tmp_path):
    folder = tmp_path / "cache" / "engines"
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--dtype", "int4"],
        ["--kv", "int8"],
        ["--temperature", "0.9", "--seed", "3"],
        ["--special-tokens"],
    ],
    ids=" ".join,
)
def test_a_second_start_gives_the_same_text(words, tmp_path, capsys, more):
    first, _ = text_of([*words, *more], capsys)
    (path,) = kept(tmp_path)
    before = path.read_bytes()
    again, err = text_of([*words, *more], capsys)
    assert again == first
    assert "cache" not in err
    assert kept(tmp_path) == [path]
    assert path.read_bytes() == before


def test_a_second_start_loads_neither_torch_nor_transformers(words, tmp_path, capsys):
    first, _ = text_of(words, capsys)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words, "--threads", "1"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"] == first
    assert done.stderr.splitlines()[-1] == "neither"


def test_figures_of_both_starts_agree(words, capsys):
    main(words)
    first = json.loads(capsys.readouterr().out)
    main(words)
    again = json.loads(capsys.readouterr().out)
    timed = {"prompt_seconds", "tokens_per_second", "seconds"}
    assert {k: v for k, v in first.items() if k not in timed} == {
        k: v for k, v in again.items() if k not in timed
    }


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "folder"])
def test_a_damaged_cache_is_one_line(words, tmp_path, capsys, damage):
    first, _ = text_of(words, capsys)
    (path,) = kept(tmp_path)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[5000] ^= 4
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(content[:-3])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        path.mkdir()
    again, err = text_of(words, capsys)
    assert again == first
    lines = [line for line in err.splitlines() if "cache" in line]
    assert lines
    assert "not used" in lines[0]


def test_a_changed_model_with_its_old_time_is_packed_again(words, tmp_path, capsys):
    text_of(words, capsys)
    model = Path(words[2])
    times = {path: path.stat() for path in model.iterdir()}
    other = artifact(tmp_path / "other", tokenizer_files(template=None))
    for path, status in times.items():
        if path.is_file():
            path.write_bytes((Path(other) / path.name).read_bytes())
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    text_of(words, capsys)
    assert len(kept(tmp_path)) == 2


def test_a_damaged_model_is_refused_though_it_was_kept(words, capsys):
    text_of(words, capsys)
    (path,) = Path(words[2]).glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert main(words) == 3


def test_a_cache_of_nothing_keeps_nothing(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE_SIZE", "0")
    _, err = text_of(words, capsys)
    assert kept(tmp_path) == []
    assert "cache" not in err
    monkeypatch.setenv("GOSSAMER_CACHE_SIZE", "many")
    assert main(words) == 2


def test_a_layout_that_has_no_form_in_files_is_not_kept(words, tmp_path, capsys):
    first, _ = text_of([*words, "--dtype", "fp32"], capsys)
    assert kept(tmp_path) == []
    assert text_of([*words, "--dtype", "fp32"], capsys)[0] == first
