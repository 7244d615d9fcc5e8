# SPDX-License-Identifier: Apache-2.0
"""The processes of a run: how they meet, agree, and end together.

`joined` brings all ranks of a mesh together and gives a `RankSession`, with the patience that
`Timeouts` say; `world_of_environment` is how many torchrun started, `restarts` how often.
`check_alike` and `check_masks` compare what must be equal, `shared_checkpoint` gives all ranks what
one has read. `messages` carries JSON and tensors without pickle.
"""

from gossamer.training.distributed.processes.session import (
    RankSession,
    Timeouts,
    check_alike,
    check_masks,
    joined,
    restarts,
    world_of_environment,
)
from gossamer.training.distributed.processes.shared_checkpoint import shared_checkpoint

__all__ = [
    "RankSession",
    "Timeouts",
    "check_alike",
    "check_masks",
    "joined",
    "restarts",
    "shared_checkpoint",
    "world_of_environment",
]
