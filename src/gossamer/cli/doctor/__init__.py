# SPDX-License-Identifier: Apache-2.0
"""`gossamer doctor`."""

from gossamer.cli.doctor.command import doctor

__all__ = ["doctor"]
