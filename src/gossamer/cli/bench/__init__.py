# SPDX-License-Identifier: Apache-2.0
"""`gossamer bench`."""

from gossamer.cli.bench.command import bench

__all__ = ["bench"]
