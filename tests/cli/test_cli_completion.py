# SPDX-License-Identifier: Apache-2.0
"""The TAB key: scripts that shells read, and what they are answered."""

import os
import shutil
import subprocess
import sys

import pytest

SHELLS = ("bash", "zsh", "fish")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_of_that_shell(gossamer_cli, tmp_path, shell):
    ran = gossamer_cli("completion", shell)
    assert ran.code == 0
    assert "_GOSSAMER_COMPLETE" in ran.out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(ran.out)
    # zsh's own comes with compinit, as in the files of its users.
    ready = "autoload -Uz compinit; compinit -u -D; " if shell == "zsh" else ""
    shown = {"bash": "complete -p gossamer", "zsh": "print $_comps[gossamer]"}
    asked = shown.get(shell, "complete -c gossamer")
    ran = subprocess.run(
        [shell, "-c", f"{ready}source {script}; {asked}"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "gossamer" in ran.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("gossamer pru", {"prune"}),
        ("gossamer completion z", {"zsh"}),
        ("gossamer run ser", {"serve"}),
    ],
)
def test_words_are_completed_without_torch(words, offered):
    code = (
        "import sys; from gossamer.cli.main import main; code = main([])\n"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    asked = {
        "_GOSSAMER_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    ran = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True
    )
    assert {line.split(",")[1] for line in ran.stdout.split()} == offered, ran.stderr
