# SPDX-License-Identifier: Apache-2.0
"""Conformance suites for plug-ins: the checks that gossamer's own formats and ops must pass."""

from gossamer.testing.formats import check_format
from gossamer.testing.ops import check_op

__all__ = ["check_format", "check_op"]
