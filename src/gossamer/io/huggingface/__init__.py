# SPDX-License-Identifier: Apache-2.0
"""Models of transformers from local directories, without running code from them.

`load_pretrained` reads config.json and safetensors. Classes come from the auto tables of the
installed transformers and from nowhere else (`auto_tables.py`); `transformers_models.py` builds
them and finds out whether one can run before weights are read. `example_inputs` makes up what a
model could be called with.
"""

from gossamer.io.huggingface.directory import from_tensors, load_pretrained, pretrained_skeleton
from gossamer.io.huggingface.example_inputs import example_inputs
from gossamer.io.huggingface.transformers_models import (
    build_transformers,
    config_of,
    is_transformers,
)

__all__ = [
    "build_transformers",
    "config_of",
    "example_inputs",
    "from_tensors",
    "is_transformers",
    "load_pretrained",
    "pretrained_skeleton",
]
