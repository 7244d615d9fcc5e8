# SPDX-License-Identifier: Apache-2.0
"""Some of the requests of `request_fuzz.py`; the script tries more of them."""

import asyncio
import sys
from pathlib import Path

import pytest
import request_fuzz

sys.path.insert(0, str(Path(__file__).parents[1] / "running"))
import text_models

SMOKE_CASES = 1000


@pytest.fixture(scope="module")
def apps(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOSSAMER_TUNE", "off")
        return request_fuzz.apps_of(
            text_models.save_classifier(tmp_path_factory.mktemp("classifier")),
            text_models.save_decoder(tmp_path_factory.mktemp("decoder")),
        )


def test_any_request_gets_an_answer_or_a_reason(apps):
    faults, statuses = asyncio.run(request_fuzz.run(apps, 1, range(SMOKE_CASES)))
    assert faults == {}
    # The mill turns: some are answered, some are refused as JSON, some as fields.
    assert min(statuses[200], statuses[400], statuses[422]) > SMOKE_CASES // 20
