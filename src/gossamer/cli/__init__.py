# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per command. Nothing here is imported by the rest of the package."""
