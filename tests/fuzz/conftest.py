# SPDX-License-Identifier: Apache-2.0
"""Makes the harness importable here."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
