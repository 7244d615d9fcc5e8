# SPDX-License-Identifier: Apache-2.0
"""Artifacts: a directory with a manifest and tensors that holds a whole model as data.

`save` writes one whole or not at all, `load_artifact` reads one, `open_artifact` gives its checked
parts, and `find_artifact` says whether there is one; `save_compressed_tensors` writes what vLLM
reads. `artifact_skeleton` is the model without weights, `streamed` gives them one by one, and
`fill` puts ordinary tensors into a model by the same rules; `unwrap` takes off what DDP and
torch.compile put around it. `beside` names the files beside the weights, `destination` asks whether
a path can be written.
"""

from gossamer.io.artifact.inventory import unwrap
from gossamer.io.artifact.opened import find_artifact, open_artifact
from gossamer.io.artifact.reader import artifact_skeleton, fill, load_artifact
from gossamer.io.artifact.writer import save, save_compressed_tensors

__all__ = [
    "artifact_skeleton",
    "fill",
    "find_artifact",
    "load_artifact",
    "open_artifact",
    "save",
    "save_compressed_tensors",
    "unwrap",
]
