# SPDX-License-Identifier: Apache-2.0
"""What the native decoder takes from a transformers model of the Llama family, and what it cannot.

Legend: R rows (outputs), K columns (inputs), D width of a head.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn import Linear, MaskedLinear
from gossamer.nn.carried import carried, carried_by_calls
from gossamer.ops.engines.decoder import DecoderShape
from gossamer.patterns import NM, Pattern, detect_pattern
from gossamer.running.layers.packed import MIN_SPARSITY, PackedLinear

# Classes whose layers are RMSNorm, rotated halves, grouped queries and SwiGLU.
CLASSES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM")
_LIBRARIES = ("torch", "transformers", "gossamer")
# Ways to stretch positions whose angles do not depend on the length of the sequence.
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Matrix:
    """One or more layers that read the same input, as one weight: rows behind one another.

    Attributes:
        weight: float32 [R, K], exact zeros where nothing is kept.
        mask: bool [R, K]; all True for a dense layer.
        bias: float32 or None.
        pattern: the one that all layers have, or None.
    """

    weight: torch.Tensor
    mask: torch.Tensor
    bias: torch.Tensor | None
    pattern: Pattern | None

    @property
    def density(self) -> float:
        """Kept fraction."""
        return float(self.mask.float().mean()) if self.mask.numel() else 1.0

    @property
    def group(self) -> tuple[int, int] | None:
        """(N, M) if every row keeps N of M."""
        pattern = self.pattern
        return (pattern.num_kept, pattern.group) if isinstance(pattern, NM) else None


def decoder_shape(model: nn.Module, context: int | None) -> DecoderShape:
    """Sizes of a supported model; InputError names the feature that is not supported.

    Args:
        model: the transformers model.
        context: the most tokens of a sequence; None = what the model was made for.
    """
    config: Any = getattr(model, "config", None)
    kind = type(model).__name__
    if config is None or kind not in CLASSES:
        raise InputError(
            f"decoder: {kind} cannot run on the native decoder; supported: {', '.join(CLASSES)} of"
            " transformers. gossamer.compile runs the layers of any model."
        )
    _refuse_extras(model)
    most = int(config.max_position_embeddings)
    context = most if context is None else context
    if not 1 <= context <= most:
        raise InputError(
            f"decoder: context must be between 1 and the {most} positions of this model, got"
            f" {context}."
        )
    _refuse_features(config, context)
    return DecoderShape(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        ffn=config.intermediate_size,
        vocab=config.vocab_size,
        context=context,
        eps=config.rms_norm_eps,
    )


def _refuse_extras(model: nn.Module) -> None:
    """Refuse what a call of the modules does, and the native decoder would not."""
    for name, module in model.named_modules():
        kind, reason = type(module), carried_by_calls(module)
        if reason is None and isinstance(module, nn.Linear | Linear):
            reason = carried(module)
        if reason is None and kind.__module__.split(".")[0] not in _LIBRARIES:
            reason = f"{kind.__name__} is a class of its own"
        if reason is not None:
            raise InputError(
                f"decoder: {name or kind.__name__}: {reason}. gossamer.compile runs the model layer"
                " by layer."
            )


def _refuse_features(config: Any, context: int) -> None:
    faults = []
    if config.hidden_act not in ("silu", "swish"):
        faults.append(f"activation {config.hidden_act!r} (only 'silu')")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in _STATIC_ROPE:
        faults.append(f"rope type {rope!r} (only {', '.join(_STATIC_ROPE)})")
    window = getattr(config, "sliding_window", None)
    slides = getattr(config, "use_sliding_window", True)
    if window is not None and slides and window < context:
        faults.append(
            f"a sliding window of {window} below the context of {context} (use a smaller context)"
        )
    if faults:
        raise InputError(f"decoder: not supported in this model: {'; '.join(faults)}.")


def rope_angles(model: nn.Module, shape: DecoderShape) -> tuple[torch.Tensor, torch.Tensor]:
    """(cosines, sines) [context, D / 2], as transformers computes them in fp32."""
    rotary: Any = model.model.rotary_emb  # type: ignore[union-attr]
    frequencies = rotary.inv_freq.float()
    if frequencies.numel() != shape.head_dim // 2:
        raise InputError(
            f"decoder: {frequencies.numel()} rotated pairs in heads of {shape.head_dim} are not"
            " supported: every column of a head must be rotated."
        )
    angles = torch.arange(shape.context, dtype=torch.float32)[:, None] * frequencies[None, :]
    scale = float(rotary.attention_scaling)
    return angles.cos() * scale, angles.sin() * scale


def joined(layers: list[nn.Module], where: str) -> Matrix:
    """Layers that read the same input as one matrix."""
    parts = [_matrix(layer, where) for layer in layers]
    biases = [part.bias for part in parts]
    bias = None
    if any(b is not None for b in biases):
        bias = torch.cat([torch.zeros(len(p.weight)) if p.bias is None else p.bias for p in parts])
    patterns = {part.pattern for part in parts}
    return Matrix(
        torch.cat([part.weight for part in parts]),
        torch.cat([part.mask for part in parts]),
        bias,
        patterns.pop() if len(patterns) == 1 else None,
    )


def _matrix(layer: nn.Module, where: str) -> Matrix:
    if isinstance(layer, PackedLinear):
        layer = layer.to_compact()
    if isinstance(layer, MaskedLinear):
        weight_RK = layer.masked_weight().detach().float()
        mask_RK, pattern = layer.mask(), layer.pattern
    elif isinstance(layer, Linear):
        weight_RK = layer.to_dense().weight.detach().float()
        mask_RK, pattern = layer.mask(), layer.pattern
    elif isinstance(layer, nn.Linear | nn.Embedding):
        weight_RK = layer.weight.detach().float()
        mask_RK = weight_RK != 0
        pattern = None
        if not mask_RK.numel() or float(mask_RK.float().mean()) > 1 - MIN_SPARSITY:
            mask_RK = torch.ones_like(mask_RK)
        else:
            pattern = detect_pattern(mask_RK)
    else:
        raise InputError(
            f"decoder: {where} is a {type(layer).__name__}; expected a linear layer, masked,"
            " compact or dense. Merge adapters first."
        )
    if not bool(torch.isfinite(weight_RK).all()):
        raise InputError(f"decoder: {where} holds weights that are NaN or infinite.")
    bias = getattr(layer, "bias", None)
    return Matrix(
        weight_RK.cpu(),
        mask_RK.cpu(),
        None if bias is None else bias.detach().float().cpu(),
        pattern,
    )
