# SPDX-License-Identifier: Apache-2.0
"""Makes the sample pages importable by the tests beside this file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
