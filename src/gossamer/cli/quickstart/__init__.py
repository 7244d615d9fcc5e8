# SPDX-License-Identifier: Apache-2.0
"""`gossamer quickstart`."""

from gossamer.cli.quickstart.command import quickstart

__all__ = ["quickstart"]
