# SPDX-License-Identifier: Apache-2.0
"""The default `card.md`: what the artifact is and how to load it, for people to edit.

It holds no text from the model: names of layers are untrusted and would need escaping.
"""

import math
import re

from gossamer.io.artifact.manifest import Manifest, SparseEntry
from gossamer.io.safe_files.tensor_header import DTYPE_NAMES


def default_card(manifest: Manifest, name: str) -> str:
    """Markdown with the measured facts of one artifact."""
    title = re.sub(r"[^A-Za-z0-9._ -]", "_", name) or "model"
    sparse = [entry for entry in manifest.tensors.values() if isinstance(entry, SparseEntry)]
    size = sum(entry.size for entry in manifest.files.values())
    lines = [
        f"# {title}",
        "",
        f"Written by {manifest.producer} as a {manifest.kind} artifact: {size} bytes.",
        "",
    ]
    if sparse:
        numel = sum(math.prod(entry.shape) for entry in sparse)
        nnz = sum(entry.mask.nnz for entry in sparse)
        dense = sum(math.prod(e.shape) * DTYPE_NAMES[e.dtype].itemsize for e in sparse)
        patterns = sorted({entry.mask.pattern for entry in sparse})
        lines += [
            f"- {len(sparse)} sparse layers, patterns: {', '.join(patterns)}",
            f"- {nnz} of {numel} weights kept: sparsity {1 - nnz / max(numel, 1):.4f}",
            f"- these weights would take {dense} bytes dense",
            "",
        ]
    call = "gossamer.load(path)" if manifest.architecture else "gossamer.load(path, model=model)"
    lines += [f"Load with `{call}`.", "", "Quality, data and licence: not stated yet.", ""]
    return "\n".join(lines)
