# SPDX-License-Identifier: Apache-2.0
"""Chances of clicks: rows of a file or of a request, through a model and the features beside it.

`ClickScorer` is made of a model and the files beside its weights. Nothing is left out: a row that
cannot be read is an error that names it.
"""

from gossamer.running.clicks.scorer import ClickScorer

__all__ = ["ClickScorer"]
