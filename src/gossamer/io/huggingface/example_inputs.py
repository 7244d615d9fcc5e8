# SPDX-License-Identifier: Apache-2.0
"""What a model of transformers could be called with, made up from its configuration alone."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import nn

Inputs = dict[str, torch.Tensor]

_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions")
_PIXELS = 64
_SAMPLES = 1600
_FRAMES = 64
_DECODED = 3


def example_inputs(model: nn.Module, tokens: int = 7, batch: int = 1) -> Inputs | None:
    """Keyword arguments of one forward, all zeros, on the device of the caller's choice.

    Args:
        model: of transformers.
        tokens: length of texts; shorter if the model has fewer positions.
        batch: how many of them.

    Returns:
        None where nobody knows what the class takes.
    """
    config: Any = model.config
    name = str(getattr(model, "main_input_name", "input_ids"))
    takes = signature(model.forward).parameters
    if name not in takes:
        return None
    try:
        made = _MAKERS[name](config, tokens, batch) if name in _MAKERS else None
        if made is None:
            return None
        inputs = {name: made}
        if name == "input_ids" and _looks_too(model):
            inputs["pixel_values"] = _pixels(config, tokens, batch)
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
            inputs["decoder_input_ids"] = _zeros(batch, min(tokens, _DECODED))
    except (AttributeError, TypeError, ValueError, IndexError, RuntimeError):
        return None
    return inputs


def _looks_too(model: nn.Module) -> bool:
    """Whether a text model takes an image in the same call, as CLIP does."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES as BOTH,
    )

    return type(model).__name__ in BOTH.values()


def _zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def _ids(config: Any, tokens: int, batch: int) -> torch.Tensor:
    text = config.get_text_config()
    known = [getattr(text, name, None) for name in _POSITIONS]
    # XLNet says -1: as many as one likes.
    limits = [number for number in known if type(number) is int and number > 0]
    return _zeros(batch, min([tokens, *limits]))


def _pixels(config: Any, tokens: int, batch: int) -> torch.Tensor:
    del tokens
    seen = getattr(config, "vision_config", config)
    size = getattr(seen, "image_size", None) or _PIXELS
    height, width = (size, size) if isinstance(size, int) else size
    channels = getattr(seen, "num_channels", 3)
    frames = getattr(seen, "num_frames", None)
    shape = (batch, channels, height, width)
    return torch.zeros(shape if frames is None else (batch, frames, *shape[1:]))


def _features(config: Any, tokens: int, batch: int) -> torch.Tensor | None:
    del tokens
    if config.model_type == "whisper":
        return torch.zeros(batch, config.num_mel_bins, 2 * config.max_source_positions)
    width = getattr(config, "input_feat_per_channel", None) or getattr(
        config, "feature_projection_input_dim", None
    )
    return None if width is None else torch.zeros(batch, _FRAMES, width)


def _values(config: Any, tokens: int, batch: int) -> torch.Tensor | None:
    del tokens
    if hasattr(config, "conv_stride"):
        # Enough sound for two frames behind the convolutions.
        return torch.zeros(batch, _SAMPLES)
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return torch.zeros(batch, config.max_length, config.num_mel_bins)
    return None


_MAKERS: dict[str, Callable[[Any, int, int], torch.Tensor | None]] = {
    "input_ids": _ids,
    "pixel_values": _pixels,
    "input_features": _features,
    "input_values": _values,
}
