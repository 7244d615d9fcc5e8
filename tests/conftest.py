import os
import time

import hypothesis
import pytest
import torch

from gossamer.ops.timing import load

# Small tensors gain nothing from a second thread and wait long for it on a busy machine.
# Tests of threading ask for their own.
torch.set_num_threads(1)
# Nor does a clock decide about a property: on a busy machine any example may take long.
# Where a change is judged, the same examples are tried every time; elsewhere the search goes on.
hypothesis.settings.register_profile(
    "no luck", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True
)
hypothesis.settings.load_profile("no luck")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Measured choices go to a folder of the test run, never to the user's; measuring is on."""
    monkeypatch.delenv("GOSSAMER_TUNE", raising=False)
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path_factory.getbasetemp() / "gossamer-cache"))


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    """Other programs on the machine of the tests decide nothing; tests of load make their own."""
    monkeypatch.setattr(load, "look", lambda: load.Look(*[time.perf_counter()] * 2))
