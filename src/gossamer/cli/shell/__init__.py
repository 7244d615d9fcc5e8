# SPDX-License-Identifier: Apache-2.0
"""What all commands share: options, output, progress, errors and exit codes."""
