# SPDX-License-Identifier: Apache-2.0
"""An encoder of a known family as plain named arrays, zeros included: what other engines are given.

    layers, word [V, D], position [T, D], norm.gain, norm.shift [D], norm.epsilon
    0.query.weight [M, D], 0.query.bias [M], the same for key, value, out, up and down;
    0.attention_norm.gain, .shift, 0.output_norm.gain, .shift, 0.epsilon, 0.heads, 0.head_width,
    0.scale, 0.activation

`position` is whatever the embeddings add to the word vectors at each place.

Legend: T tokens, D features, M features of all heads, V words.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.families import answers
from gossamer.ops.engines.encoder import EncoderBlock, Product
from gossamer.running.encoder.layers import find_encoders, read_layers

__all__ = [
    "Arrays",
    "encoder_arrays",
    "find_base",
]

Arrays = dict[str, npt.NDArray[Any]]


def find_base(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """(the module that takes ids and gives hidden states, the encoder in it)."""
    found = find_encoders(model)
    if len(found) != 1 or not found[0][0]:
        raise TargetError(
            f"{type(model).__name__} holds {len(found)} encoders of a known family"
            f" ({', '.join(answers('encoder'))}) below embeddings, expected 1. `gossamer bench"
            " linear` times single layers of any model."
        )
    name, encoder = found[0]
    return model.get_submodule(name.rpartition(".")[0]), encoder


def encoder_arrays(base: nn.Module, encoder: nn.Module, tokens: int) -> Arrays:
    """The arrays for sequences of `tokens` tokens without padding."""
    layers = read_layers(encoder)
    _refuse_others(base, layers)
    arrays: Arrays = {"layers": np.array(len(layers)), **_embeddings(base, tokens)}
    for number, layer in enumerate(layers):
        arrays |= {f"{number}.{name}": array for name, array in _layer(layer).items()}
    return arrays


def _refuse_others(base: nn.Module, layers: list[EncoderBlock]) -> None:
    """Refuse what these arrays cannot say, so that no engine is given another model."""
    words: Any = getattr(getattr(base, "embeddings", None), "word_embeddings", None)
    width = layers[0].qkv.matrix.shape[1]
    plain = all(
        not (layer.norm_first or layer.is_gated or layer.knows_positions)
        and layer.activation in ("gelu", "relu", "silu")
        for layer in layers
    )
    if not plain or words is None or words.embedding_dim != width:
        raise TargetError(
            f"{type(base).__name__}: other engines are given BERT's layers behind embeddings of"
            " their width: norms last, no gates, no rotation and no biases of scores. This model"
            " has others; `gossamer.compile` runs it."
        )


def _embeddings(base: nn.Module, tokens: int) -> Arrays:
    embeddings: Any = base.get_submodule("embeddings")
    words, norm = embeddings.word_embeddings, embeddings.LayerNorm
    # Families count positions and kinds of tokens differently: what they add is read off.
    ids = torch.full((1, tokens), words.num_embeddings - 1)
    sums: list[torch.Tensor] = []
    hook = norm.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))
    with hook, torch.inference_mode():
        embeddings(input_ids=ids)
    return {
        "word": words.weight.detach().numpy(),
        "position": (sums[0][0] - words.weight[ids[0]]).detach().numpy(),
        "norm.gain": norm.weight.detach().numpy(),
        "norm.shift": norm.bias.detach().numpy(),
        "norm.epsilon": np.array(norm.eps),
    }


def _layer(layer: EncoderBlock) -> Arrays:
    numbers = ("epsilon", "heads", "head_width", "scale", "activation")
    arrays: Arrays = {name: np.array(getattr(layer, name)) for name in numbers}
    for name in ("attention_norm", "output_norm"):
        norm: Any = getattr(layer, name)
        arrays[f"{name}.gain"], arrays[f"{name}.shift"] = norm.weight.numpy(), norm.bias.numpy()
    parts = [np.split(array, 3) for array in _dense(layer.qkv)]
    for number, name in enumerate(("query", "key", "value")):
        arrays[f"{name}.weight"], arrays[f"{name}.bias"] = (part[number] for part in parts)
    for name in ("out", "up", "down"):
        arrays[f"{name}.weight"], arrays[f"{name}.bias"] = _dense(getattr(layer, name))
    return arrays


def _dense(linear: Product) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    weight = linear.matrix.dense()
    bias = torch.zeros(len(weight)) if linear.bias is None else linear.bias
    return weight.numpy(), bias.numpy()
