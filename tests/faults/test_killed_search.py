# SPDX-License-Identifier: Apache-2.0
"""A search that is killed again and again ends with the same models."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "search"))

from search_tools import random_lines

DRILL = Path(__file__).with_name("search_drill.py")
ENVIRONMENT = {**os.environ, "GOSSAMER_TUNE": "off", "OMP_NUM_THREADS": "1"}


def _start(out, data):
    return subprocess.Popen(
        [sys.executable, str(DRILL), str(out), str(data)],
        stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip


def _state(folder):
    """What a search has left so far: changes whenever a file comes or goes."""
    return [sorted(files) for _, _, files in os.walk(folder)]


def _killed(out, data, changes):
    """Kill -9 after so many changes in the folder; False if it ended before."""
    process = _start(out, data)
    folder, seen = Path(f"{out}.work"), 0
    before = _state(folder)
    while process.poll() is None and seen < changes:
        time.sleep(0.002)
        now = _state(folder)
        seen += now != before
        before = now
    if process.poll() is not None:
        process.communicate()
        return False
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    return True


def _artifacts(out):
    """Every candidate, to the byte; which one is taken depends on times, measured anew."""
    return {
        str(path.relative_to(f"{out}.work")): path.read_bytes()
        for path in sorted(Path(f"{out}.work").glob("*/*"))
        if path.suffix != ".md"
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_many_moments(tmp_path):
    data = tmp_path / "sentences.txt"
    data.write_text("\n".join(random_lines(80)))
    whole = _start(tmp_path / "whole", data)
    expected = json.loads(whole.communicate()[0].splitlines()[-1])
    kills = sum(_killed(tmp_path / "out", data, changes) for changes in (2, 5, 9, 14, 20, 40))
    assert kills >= 3
    again = _start(tmp_path / "out", data)
    found = json.loads(again.communicate()[0].splitlines()[-1])
    assert again.returncode == 0
    assert found == expected
    assert _artifacts(tmp_path / "out") == _artifacts(tmp_path / "whole")
