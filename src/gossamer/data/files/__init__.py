# SPDX-License-Identifier: Apache-2.0
"""One reader per type of data file, for `prune`, `train`, `shrink` and `run` alike.

`read_samples` takes every file of texts: plain text, JSON lines, tables with commas or tabs, and
token tensors. `read_images` takes images with labels: .npz files and folders of idx files. Both
look up the reader in a table by the ending of the file; a new type is a new row there.
"""

from gossamer.data.files.image_files import ImageSet, read_images
from gossamer.data.files.text_files import Pair, Texts, check_scores, read_labelled, read_samples

__all__ = [
    "ImageSet",
    "Pair",
    "Texts",
    "check_scores",
    "read_images",
    "read_labelled",
    "read_samples",
]
