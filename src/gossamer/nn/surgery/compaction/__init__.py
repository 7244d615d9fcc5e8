# SPDX-License-Identifier: Apache-2.0
"""Masks are fixed in the middle of a run: `compact`; the optimizer's state is carried along."""

from gossamer.nn.surgery.compaction.fixing import CompactionResult, compact

__all__ = ["CompactionResult", "compact"]
