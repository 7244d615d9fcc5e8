"""The examples that talk and encode, run as a user runs them, on models that are made here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name, *arguments):
    environment = {**os.environ, "GOSSAMER_TUNE": "off", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_chat_answers(decoder_folder):
    first = run("chat.py", "Hello there", str(decoder_folder))
    assert first.endswith("\n")
    assert len(first.strip()) > 0
    assert run("chat.py", "Hello there", str(decoder_folder)) == first


@pytest.mark.slow
def test_encode_finds_neighbours():
    shown = run("encode.py")
    assert "pruned against dense: cosine" in shown
    assert shown.count("is nearest to") == 5
