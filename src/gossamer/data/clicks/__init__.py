# SPDX-License-Identifier: Apache-2.0
"""Click logs: from a text file of any size to batches of numbers and ids, and how good chances are.

`columns_of` says what each column is. `open_clicks` reads a log once into arrays and learns
`Features` from its training part, which `read_features` gives back at serving. `ClickBatches` are
batches by number, `click_metrics` compares chances with what happened.
"""

from gossamer.data.clicks.batches import ClickBatches
from gossamer.data.clicks.cache import open_clicks
from gossamer.data.clicks.columns import columns_of
from gossamer.data.clicks.features import FEATURES_FILE, Features, read_features
from gossamer.data.clicks.metrics import click_metrics
from gossamer.data.clicks.rows import ClickRows

__all__ = [
    "FEATURES_FILE",
    "ClickBatches",
    "ClickRows",
    "Features",
    "click_metrics",
    "columns_of",
    "open_clicks",
    "read_features",
]
