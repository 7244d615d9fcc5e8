# SPDX-License-Identifier: Apache-2.0
"""Dense or which kernel: measured once per shape, kept on disk, the same on all ranks.

Start at `Chooser.choose` for the kernels of one linear layer (its `Contenders`), and at
`choose_among` for any callables that do the same work (`Rival`). Each answer is a `Choice`.
"""

from gossamer.running.choice.choose import (
    Call,
    Choice,
    Chooser,
    Contenders,
    CostKey,
    CostTable,
    Forced,
    Rival,
)

__all__ = ["Call", "Choice", "Chooser", "Contenders", "CostKey", "CostTable", "Forced", "Rival"]
