# SPDX-License-Identifier: Apache-2.0
"""`gossamer recipe`: list, show, copy, validate, schema; torch is never imported."""

import json
import subprocess
import sys

import pytest

from gossamer.recipes import builtin_names, builtin_text

BAD = """gossamer: 1
stages:
  - prune:
      method: wandaa
      sparsity: 50
"""


def test_list_names_every_built_in_recipe(gossamer_cli):
    ran = gossamer_cli("recipe", "list")
    assert ran.code == 0
    for name in builtin_names():
        assert name in ran.out
    rows = {
        row["name"]: row for row in gossamer_cli("recipe", "list", "--json").document["recipes"]
    }
    assert list(rows) == builtin_names()
    assert rows["magnitude-50"]["needs_data"] is False
    assert rows["wanda-50"]["needs_data"] is True
    assert all(row["description"] for row in rows.values())


def test_show_prints_the_file_as_it_is(gossamer_cli):
    assert gossamer_cli("recipe", "show", "sparsegpt-50").out == builtin_text("sparsegpt-50")
    shown = gossamer_cli("recipe", "show", "sparsegpt-50", "--json").document
    assert shown["text"] == builtin_text("sparsegpt-50")
    assert shown["command"] == "recipe show"


def test_copy_gives_a_valid_file_and_never_overwrites(gossamer_cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gossamer_cli("recipe", "copy", "wanda-50").code == 0
    assert gossamer_cli("recipe", "copy", "wanda-50", "mine.yaml").code == 0
    (tmp_path / "folder").mkdir()
    assert gossamer_cli("recipe", "copy", "wanda-50", "folder").code == 0
    for name in ("wanda-50.yaml", "mine.yaml", "folder/wanda-50.yaml"):
        assert (tmp_path / name).read_text() == builtin_text("wanda-50")
        assert gossamer_cli("recipe", "validate", name).code == 0
    (tmp_path / "mine.yaml").write_text("precious")
    ran = gossamer_cli("recipe", "copy", "wanda-50", "mine.yaml")
    assert ran.code == 2
    assert "is not overwritten" in ran.err
    assert (tmp_path / "mine.yaml").read_text() == "precious"


def test_copy_into_a_missing_folder_is_an_error_of_the_path(gossamer_cli, tmp_path):
    ran = gossamer_cli("recipe", "copy", "wanda-50", tmp_path / "no" / "where.yaml")
    assert ran.code == 4
    assert "where.yaml" in ran.err


def test_validate_tells_all_faults_of_all_files(gossamer_cli, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    ran = gossamer_cli("recipe", "validate", file, "sparsegpt-50", tmp_path / "none.yaml")
    assert ran.code == 2
    lines = ran.out.splitlines()
    assert lines[0].startswith(
        f"{file}:4 stages[0].prune.method: unknown method 'wandaa'. Did you mean 'wanda'?"
    )
    assert lines[0].endswith("Run 'gossamer recipe schema'.")
    assert lines[1] == (
        f"{file}:5 stages[0].prune.sparsity: must be in [0, 1), got 50. Write 0.5 for 50 %."
    )
    assert lines[2] == "sparsegpt-50: valid"
    assert "there is no such file" in lines[3]


def test_validate_json(gossamer_cli, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    ran = gossamer_cli("recipe", "validate", file, "wanda-50", "--json", "-q")
    assert ran.code == 2
    assert ran.err == ""
    assert ran.document["valid"] is False
    first, second = ran.document["files"]
    assert [fault["line"] for fault in first["faults"]] == [4, 5]
    assert first["faults"][1]["path"] == "stages[0].prune.sparsity"
    assert second == {"file": "wanda-50", "valid": True, "faults": []}


@pytest.mark.parametrize(
    ("override", "code", "words"),
    [
        ("sparsity=0.7", 0, "valid"),
        ("sparsity=70", 2, "--set sparsity=70 stages[0].prune.sparsity: must be in [0, 1), got 70"),
        ("sparcity=0.7", 2, "Did you mean 'sparsity'?"),
    ],
)
def test_validate_with_overrides(override, code, words, gossamer_cli):
    ran = gossamer_cli("recipe", "validate", "sparsegpt-50", "--set", override)
    assert ran.code == code
    assert words in ran.out


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["show", "wanda-50"], ["copy", "wanda-50"], ["validate", "wanda-50"], ["schema"]],
    ids=lambda arguments: arguments[0],
)
def test_json_is_one_document_and_quiet_is_silent(arguments, gossamer_cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = gossamer_cli("recipe", *arguments, "--json", "-q")
    assert ran.code == 0
    assert ran.err == ""
    assert ran.document["schema"] == 1
    assert ran.document["command"] == f"recipe {arguments[0]}"


def test_schema_is_json_either_way(gossamer_cli):
    plain = json.loads(gossamer_cli("recipe", "schema").out)
    assert gossamer_cli("recipe", "schema", "--json").document["json_schema"] == plain
    assert set(plain["required"]) == {"gossamer", "stages"}


PROBE = """
import sys
from gossamer.cli.main import main
code = main({arguments!r})
sys.stderr.write(f"heavy={{[n for n in ('torch', 'numpy') if n in sys.modules]}} code={{code}}")
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["list"], 0),
        (["schema"], 0),
        (["validate", *builtin_names()], 0),
        (["validate", "bad.yaml", "odd.yaml"], 2),
    ],
    ids=["list", "schema", "valid", "faulty"],
)
def test_no_recipe_command_imports_torch(arguments, code, tmp_path):
    (tmp_path / "bad.yaml").write_text(BAD)
    (tmp_path / "odd.yaml").write_text(BAD + "      pattern: blok:4x4\n")
    probe = PROBE.format(arguments=["recipe", *arguments])
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.stderr == f"heavy=[] code={code}"
