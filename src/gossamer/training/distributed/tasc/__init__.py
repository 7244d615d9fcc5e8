# SPDX-License-Identifier: Apache-2.0
"""TASC: only the blocks of a gradient that matter most are all-reduced, the same on all ranks.

`attach` lets a DDP model communicate this way. `RowSGD` and `RowAdamW` are optimizers that know
which blocks arrived; `CurvatureProbe` weighs blocks by the curvature of the loss.
"""

from gossamer.training.distributed.tasc.curvature import CurvatureProbe
from gossamer.training.distributed.tasc.direct import attach, join
from gossamer.training.distributed.tasc.exchange import Tasc
from gossamer.training.distributed.tasc.row_optim import RowAdamW, RowSGD

__all__ = ["CurvatureProbe", "RowAdamW", "RowSGD", "Tasc", "attach", "join"]
