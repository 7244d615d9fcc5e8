# SPDX-License-Identifier: Apache-2.0
"""Models of transformers from local directories, without running code from them.

`load_pretrained` reads config.json and safetensors. Classes come from a closed table, the families
of `gossamer.nn.families`; `transformers_models.py` builds them and finds out whether one can run
before weights are read.
"""

from gossamer.io.huggingface.directory import from_tensors, load_pretrained, pretrained_skeleton
from gossamer.io.huggingface.transformers_models import (
    build_transformers,
    config_of,
    is_transformers,
)

__all__ = [
    "build_transformers",
    "config_of",
    "from_tensors",
    "is_transformers",
    "load_pretrained",
    "pretrained_skeleton",
]
