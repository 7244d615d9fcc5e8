# SPDX-License-Identifier: Apache-2.0
"""Makes the helpers of tests/io importable here."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "io"))
