# SPDX-License-Identifier: Apache-2.0
"""`gossamer run`."""

from gossamer.cli.run.command import run

__all__ = ["run"]
