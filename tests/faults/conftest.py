# SPDX-License-Identifier: Apache-2.0
"""Makes the helpers of tests/io and tests/train importable here."""

import sys
from pathlib import Path

for folder in ("io", "train"):
    sys.path.append(str(Path(__file__).parents[1] / folder))
