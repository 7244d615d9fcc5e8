# SPDX-License-Identifier: Apache-2.0
"""`python -m gossamer`, which is how torchrun starts it on many processes."""

import sys

from gossamer.cli.main import main

sys.exit(main())
