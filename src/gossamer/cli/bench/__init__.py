# SPDX-License-Identifier: Apache-2.0
"""`gossamer bench`: sparse layers and whole encoders, timed against dense ones and other engines.

`int8_rival` is the dense int8 model that quickstarts compare with.
"""

from gossamer.cli.bench.command import bench

__all__ = ["bench"]
