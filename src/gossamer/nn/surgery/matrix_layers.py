# SPDX-License-Identifier: Apache-2.0
"""Linear layers seen as one matrix [out, in], whichever way round they store it.

transformers' Conv1D of GPT-2 stores [in, out]. Rows and columns here are always those of [out, in].
A Linear in the place of a Conv1D computes the same, and everything that masks, packs or runs
Linears can have it. So it does in the place of Falcon's own Linear, which rounds in half precision
before it adds its bias.
"""

import torch
from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.surgery import inherit_hooks

__all__ = [
    "BiasOnly",
    "conv1d_paths",
    "conv1d_to_linear",
    "has_other_linears",
    "is_matrix_layer",
    "matrix_of",
    "set_matrix",
    "stores_transposed",
]


class BiasOnly(nn.Linear):
    """A Linear of no inputs, whose output is its bias.

    nn.Linear computes the same, but a Conv1D cannot (it flattens its input by a view whose size
    nothing determines), and ONNX has no products of nothing.
    """

    @classmethod
    def of(cls, layer: nn.Module) -> "BiasOnly":
        """What is left of a layer without its columns."""
        matrix = matrix_of(layer)
        bias = layer._parameters.get("bias")
        result = cls(1, len(matrix), bias is not None, device="meta", dtype=matrix.dtype)
        result.in_features = 0
        result.weight = nn.Parameter(matrix.detach()[:, :0].clone(), matrix.requires_grad)
        if bias is not None:
            result.bias = bias
        inherit_hooks(result, layer)
        return result

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The bias at every position; what is in `input` does not matter."""
        shape = (*input.shape[:-1], self.out_features)
        bias = self._parameters["bias"]
        return self.weight.new_zeros(shape) if bias is None else bias.expand(shape)


def stores_transposed(layer: nn.Module) -> bool:
    """Whether the layer is a Conv1D of transformers."""
    kind = type(layer)
    return kind.__qualname__ == "Conv1D" and kind.__module__.startswith("transformers.")


def _is_linear_by_another_name(layer: nn.Module) -> bool:
    """Whether the layer is one that a Linear can stand for: Conv1D, or Falcon's own Linear."""
    kind = type(layer)
    own = kind.__qualname__ == "FalconLinear" and kind.__module__.startswith("transformers.")
    return own or stores_transposed(layer)


def is_matrix_layer(layer: nn.Module) -> bool:
    """Whether rows and columns of the layer can be cut: nn.Linear itself, or Conv1D."""
    return type(layer) in (nn.Linear, BiasOnly) or stores_transposed(layer)


def matrix_of(layer: nn.Module) -> torch.Tensor:
    """The weight [out, in] as a view of the Parameter."""
    weight = layer._parameters.get("weight")
    if weight is None:
        raise TargetError(f"a {type(layer).__name__} whose weight is no Parameter cannot be cut.")
    return weight.t() if stores_transposed(layer) else weight


def set_matrix(layer: nn.Module, matrix_RK: torch.Tensor) -> None:
    """Give the layer a new weight [out, in]; the sizes it names are kept true."""
    stored = matrix_RK.t() if stores_transposed(layer) else matrix_RK
    needs_gradient = layer.get_parameter("weight").requires_grad
    layer.weight = nn.Parameter(stored.detach().clone().contiguous(), needs_gradient)
    names = ("nf", "nx") if stores_transposed(layer) else ("out_features", "in_features")
    for name, size in zip(names, matrix_RK.shape, strict=True):
        setattr(layer, name, size)


def conv1d_to_linear(model: nn.Module) -> nn.Module:
    """Replace every Conv1D of transformers inside `model` by a Linear, and give `model` back.

    Falcon's own Linear is replaced, too.
    Hooks are taken over. Optimizers that were made before hold the old weights.
    """
    made: dict[nn.Module, nn.Linear] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and _is_linear_by_another_name(child):
                if child not in made:
                    made[child] = _linear(child)
                parent._modules[name] = made[child]
    return model


def conv1d_paths(model: nn.Module) -> list[str]:
    """Names of the Conv1D layers of transformers inside `model`."""
    return [name for name, module in model.named_modules() if stores_transposed(module)]


def has_other_linears(model: nn.Module) -> bool:
    """Whether `conv1d_to_linear` would replace anything inside `model`."""
    return any(_is_linear_by_another_name(module) for module in model.modules())


def _linear(layer: nn.Module) -> nn.Linear:
    if "forward" in layer.__dict__:
        kind = type(layer).__name__
        raise TargetError(
            f"a {kind} whose forward was replaced on the instance cannot be a Linear."
        )
    matrix = matrix_of(layer)
    bias = layer._parameters["bias"]
    result = nn.Linear(matrix.shape[1], matrix.shape[0], device="meta", dtype=matrix.dtype)
    needs_gradient = layer.get_parameter("weight").requires_grad
    result.weight = nn.Parameter(matrix.detach().contiguous(), needs_gradient)
    result.register_parameter("bias", bias)
    inherit_hooks(result, layer)
    return result
