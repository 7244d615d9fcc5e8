# SPDX-License-Identifier: Apache-2.0
"""A few damaged files for every reader; `make fuzz` runs many, with memory and time watched."""

import pytest
from fuzz import case_files, run_case, seeds_of
from line_coverage import LineCoverage
from targets import TARGETS

CASES = 40


@pytest.mark.parametrize("name", TARGETS)
def test_every_reader_refuses_with_its_own_errors(tmp_path, name):
    target = TARGETS[name]
    seeds = seeds_of(target)
    for files in seeds:
        assert run_case(target, files, tmp_path / "case") == "accepted"
    outcomes = {
        run_case(target, case_files(target, seeds, 0, number), tmp_path / "case")
        for number in range(1, CASES)
    }
    assert outcomes


def test_every_source_that_coverage_is_told_of_is_there():
    for target in TARGETS.values():
        assert target.functions, target.name
        assert LineCoverage(target.functions).percent == 0
