# SPDX-License-Identifier: Apache-2.0
"""Packets of touched rows between hosts: interfaces count the bytes that the formula says."""

import json
import sys
from pathlib import Path

import pytest

from gossamer.training.distributed import table_traffic

WORKER = Path(__file__).parents[2] / "benchmarks" / "support" / "table_steps.py"
HEIGHTS, WIDTH, HOSTS = [200_000, 60_000, 40], 16, 4
METHODS = {"sparse fp32": "full", "sparse int8": "int8", "sparse int4": "int4"}


@pytest.mark.cluster
@pytest.mark.parametrize("route", ["gather", "owner"])
def test_interfaces_count_what_the_formula_says(make_cluster, route):
    settings = {
        "methods": list(METHODS),
        "heights": HEIGHTS,
        "width": WIDTH,
        "batch": 20_000,
        "rounds": 1,
        "steps": 2,
        "rate": 0.1,
        "rounding": "nearest",
        "route": route,
        "seconds": 200,
        "drill": 0,
    }
    command = [sys.executable, str(WORKER), json.dumps(settings)]
    ended = make_cluster(HOSTS).run(command, timeout_seconds=250)
    assert [one.exit_code for one in ended] == [0] * HOSTS, ended[0].errors
    said = json.loads(ended[0].output.splitlines()[-1])["said"]
    for name, wire in METHODS.items():
        steps = [step for host in said["rows"] for step in host[name]]
        rows, union = (sum(step[i] for step in steps) / len(steps) for i in (0, 1))
        wanted = table_traffic({WIDTH: rows}, union / rows, HOSTS, wire, len(HEIGHTS))
        expected = wanted.owner if route == "owner" else wanted.gather
        found = said["found"][name]["bytes"]
        # Of the host that sent most; a barrier and acknowledgements are in it, some 4 kB.
        assert sum(found) / len(found) == pytest.approx(expected, rel=0.05)
