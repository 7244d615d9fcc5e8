# SPDX-License-Identifier: Apache-2.0
"""Makes the helpers of tests/io and tests/formats importable here."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("io", "formats")]
