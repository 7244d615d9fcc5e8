# SPDX-License-Identifier: Apache-2.0
"""Tools of the loop's tests, one folder up."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
