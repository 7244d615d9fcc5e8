# SPDX-License-Identifier: Apache-2.0
"""MODEL on the command line: directories, files, demos, the user's own functions."""
