# SPDX-License-Identifier: Apache-2.0
"""Directories and small files that appear whole or not at all, with one writer at a time.

Start at `replace_directory`, which gives an empty folder to fill and puts it in place at the end.
"""

from gossamer.io.safe_files.directories.atomic import (
    SPARE_FACTOR,
    AnyPath,
    exclusive_lock,
    find_directory,
    replace_directory,
    sync_directory,
    write_whole,
)

__all__ = [
    "SPARE_FACTOR",
    "AnyPath",
    "exclusive_lock",
    "find_directory",
    "replace_directory",
    "sync_directory",
    "write_whole",
]
