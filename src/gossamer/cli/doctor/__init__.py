# SPDX-License-Identifier: Apache-2.0
"""`gossamer doctor`: `health` looks at the machine, `scrub` hides what is private."""

from gossamer.cli.doctor.command import doctor

__all__ = ["doctor"]
