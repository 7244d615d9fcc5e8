# SPDX-License-Identifier: Apache-2.0
"""Runs commands in this process or in a fresh one."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from gossamer.cli.main import main


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def document(self):
        """The one JSON document on stdout; anything beside it makes this fail."""
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GOSSAMER_TUNE", "off")


@pytest.fixture
def gossamer_cli(capsys):
    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture
def fresh_cli():
    def run(*arguments, **variables):
        done = subprocess.run(
            [sys.executable, "-m", "gossamer.cli.main", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, **variables},
            timeout=120,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run
