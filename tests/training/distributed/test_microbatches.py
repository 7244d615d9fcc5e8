# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from gossamer.errors import InputError
from gossamer.training.distributed.pipeline.pipeline import check_batch, pieces
from gossamer.training.distributed.pipeline.schedules import (
    SCHEDULES,
    check_microbatches,
    rank_of_stage,
    schedule_named,
    stages_per_rank,
)


def test_containers_are_cut_together():
    batch = {"x": torch.arange(5), "rest": (torch.arange(10).view(5, 2), "name", None)}
    first, second = pieces(batch, 2)
    assert first["x"].tolist() == [0, 1, 2]
    assert second["rest"][0].tolist() == [[6, 7], [8, 9]]
    assert second["rest"][1:] == ("name", None)


def test_no_more_pieces_than_samples():
    assert len(pieces(torch.zeros(2), 8)) == 2
    assert len(pieces(torch.zeros(0, 3), 8)) == 1


def test_a_batch_that_cannot_be_cut_evenly_is_refused():
    with pytest.raises(InputError, match="5 samples cannot be cut into 2 equal microbatches"):
        check_batch(torch.zeros(5), 2)
    with pytest.raises(InputError, match="0 samples"):
        check_batch(torch.zeros(0), 2)


@pytest.mark.parametrize("batch", [(torch.zeros(2), torch.zeros(3)), torch.zeros(()), ()])
def test_a_batch_without_a_size_is_refused(batch):
    with pytest.raises(InputError, match="first dimension"):
        check_batch(batch, 1)


def test_stages_of_ranks():
    assert [rank_of_stage("interleaved", s, 3) for s in range(6)] == [0, 1, 2, 0, 1, 2]
    assert [rank_of_stage("zero-bubble-v", s, 3) for s in range(6)] == [0, 1, 2, 2, 1, 0]
    assert {name: stages_per_rank(name, None) for name in SCHEDULES} == {
        "gpipe": 1,
        "1f1b": 1,
        "interleaved": 2,
        "zero-bubble": 1,
        "zero-bubble-v": 2,
        "message-driven": 1,
    }
    assert stages_per_rank("interleaved", 3) == 3


def test_settings_that_no_schedule_has_are_refused():
    with pytest.raises(InputError, match=r"one of gpipe.*got 'fastest'"):
        schedule_named("fastest")
    with pytest.raises(InputError, match="1 stage per rank; got 2"):
        stages_per_rank("message-driven", 2)
    with pytest.raises(InputError, match="2 stages per rank; got 3"):
        stages_per_rank("zero-bubble-v", 3)
    with pytest.raises(InputError, match="multiple of 4; got 9"):
        check_microbatches("interleaved", 9, 4)
    with pytest.raises(InputError, match="at least 1 microbatch"):
        check_microbatches("1f1b", 0, 4)
