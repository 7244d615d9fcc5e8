# SPDX-License-Identifier: Apache-2.0
"""Experts on several ranks: each holds some of every mixture, and tokens travel to them and back.

`check_experts` refuses what cannot be shared, `share_experts` cuts a model, `count_together` lets
routers look at the tokens of all ranks, and `sent_tokens` says what travelled.
"""

from gossamer.training.distributed.experts.exchange import sent_tokens
from gossamer.training.distributed.experts.sharing import (
    check_experts,
    count_together,
    share_experts,
)

__all__ = ["check_experts", "count_together", "sent_tokens", "share_experts"]
