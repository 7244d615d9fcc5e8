# SPDX-License-Identifier: Apache-2.0
"""Makes the helpers of tests/io and tests/training importable here."""

import sys
from pathlib import Path

for folder in ("io", "training"):
    sys.path.append(str(Path(__file__).parents[1] / folder))
