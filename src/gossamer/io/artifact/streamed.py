# SPDX-License-Identifier: Apache-2.0
"""An artifact whose tensors are decoded one by one, when each is asked for.

The files are read and verified as for any load; what is never in memory is the dense model.
"""

import torch

from gossamer.formats import SparseMatrix
from gossamer.io.artifact.inventory import check_fit, owner_of
from gossamer.io.artifact.manifest import DenseEntry, SparseEntry, TiedEntry, TransformersNode
from gossamer.io.artifact.opened import open_artifact
from gossamer.io.artifact.packing import SparseWeight, decode_one
from gossamer.io.safe_files.checks import check_memory
from gossamer.io.safe_files.directories import AnyPath
from gossamer.nn.streamed import StreamedModel, streamed_model

__all__ = ["stream_artifact"]


def stream_artifact(path: AnyPath) -> StreamedModel | None:
    """The model of an artifact without its weights; None for one that has to be loaded.

    Each weight can be fetched once: its arrays are let go then.
    """
    with open_artifact(path) as artifact:
        manifest, where = artifact.manifest, str(artifact.path)
        node, config = manifest.architecture, artifact.config()
        entries = manifest.tensors.values()
        plain = all(
            isinstance(entry, DenseEntry | SparseEntry)
            or (isinstance(entry, TiedEntry) and entry.mask is None)
            for entry in entries
        )
        if not isinstance(node, TransformersNode) or not plain or config is None:
            return None
        if manifest.attention or manifest.shared_modules or node.slim or node.tokens:
            return None
        model = streamed_model(node.name, config)
        if model is None or model.config.num_hidden_layers > len(entries):
            return None
        stored = check_fit(manifest, model, where, exact_dtypes=False)
        check_memory(artifact.num_bytes, artifact.num_bytes, None, where)
        arrays = artifact.read()

    def read(name: str) -> torch.Tensor | SparseMatrix:
        found = decode_one(manifest, owner_of(manifest, stored[name]), arrays, where)
        if isinstance(found, SparseWeight):
            return found.matrix
        assert isinstance(found, torch.Tensor)  # noqa: S101  (entries are of no other kind)
        return found

    model.read_from(read)
    return model
