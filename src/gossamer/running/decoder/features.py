# SPDX-License-Identifier: Apache-2.0
"""What a transformers model computes between its weights, as the native decoder takes it.

A family's row (`DecoderFacts`) says where a model keeps it; here it is read, checked and, where the
native decoder would compute something else, refused. Nothing is packed before all of it is known.

Legend: P rotated pairs of a head.
"""

import math
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.attention import attention_states
from gossamer.nn.families import answers
from gossamer.nn.families.text import num_positions
from gossamer.nn.layer_kinds import form_of, kind_name
from gossamer.nn.layer_weights import weight_of
from gossamer.nn.relufication import RectifiedNorm
from gossamer.nn.relufication.states import relu_cut, relu_states
from gossamer.nn.streamed import StreamedModel
from gossamer.nn.surgery.carried import carried, carried_by_calls
from gossamer.nn.surgery.matrix_layers import conv1d_to_linear
from gossamer.ops.engines import PackedNeurons
from gossamer.ops.engines.decoder import DecoderNorm, DecoderRules, DecoderShape
from gossamer.patterns.attention import parse_attention
from gossamer.running.decoder.experts import Mixture

# What is known of the classes that the native decoder runs.
FACTS = {facts.model: facts for facts in answers("decoder").values()}
_LIBRARIES = ("torch", "transformers", "gossamer")
# Classes of activations, by what the native decoder calls them.
_ACTIVATIONS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "GELUActivation": "gelu",
    "ReLU": "relu",
    "ShiftedReLU": "relu",
}
# How configurations name the inner features of the feed-forward part.
_FFN = ("intermediate_size", "ffn_dim", "n_inner")
# Angles of "longrope" depend on the length of the text from this setting on.
_LONG, _LONG_FROM = "longrope", "original_max_position_embeddings"
_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "proportional", _LONG)


class DecoderFeatures:
    """A model of a family that the native decoder runs.

    Attributes:
        facts: the row of its family.
        shape: its sizes.
        rules: what holds for all layers.
        rotations: (cosines, sines) [context, P] of every kind of rotation that its layers use.
        positions: learned ones, [context, width]; or None.
        layers: its blocks.
        mixtures: the experts of each of them, or None.
        windows: positions that each of them attends to; 0: all.
        scales: the factor of the scores of each.

    Args:
        model: the transformers model; InputError names what the native decoder does not compute.
        context: the most tokens of a sequence; None = what the model was made for.
        reach: tokens that a session holds at a time, which then is what the model must have
            positions for; 0 = the whole context.
    """

    def __init__(self, model: nn.Module, context: int | None, reach: int = 0) -> None:
        self.model, self._reach = model, reach
        kind = type(model).__name__
        self._config: Any = getattr(model, "config", None)
        if self._config is None or kind not in FACTS:
            raise InputError(
                f"decoder: {kind} cannot run on the native decoder; supported: {', '.join(FACTS)}"
                " of transformers. gossamer.compile runs the layers of any model."
            )
        self.facts = FACTS[kind]
        _refuse_extras(model)
        self._refuse_settings()
        self.shape = self._shape(context)
        layers: Any = model.get_submodule(self.facts.chain.layers)
        self.layers: list[nn.Module] = list(layers)
        self.mixtures = [self._mixture(number) for number in range(len(self.layers))]
        self.rules = self._rules()
        kinds = {self._rotation_kind(layer) for layer in self.layers} - {None}
        self._kinds = sorted(kinds, key=str)
        self.rotations = [self._angles(str(kind)) for kind in self._kinds]
        self.positions = self._positions()
        self.windows = [self._within_pattern(layer) for layer in self.layers]
        self.scales = [self._number(layer, self.facts.scale, 1.0) for layer in self.layers]

    def part(self, path: str) -> nn.Module:
        """A module with its weight; of a model that is streamed, it is read now."""
        model = self.model
        return model.fetch(path) if isinstance(model, StreamedModel) else model.get_submodule(path)

    def norms(self, layer: nn.Module) -> tuple[DecoderNorm | None, ...]:
        """The six norms of a layer, as `DecoderBlock` takes them."""
        facts = self.facts
        reads = facts.block.norms if facts.norms_in is None else facts.norms_in
        pairs = [names or (None, None) for names in (reads, facts.norms_out, facts.head_norms)]
        (a_in, f_in), (a_out, f_out), heads = pairs
        names = (a_in, a_out, f_in, f_out, *heads)
        return tuple(
            None if name is None else self.norm(layer.get_submodule(name)) for name in names
        )

    def norm(self, module: nn.Module) -> DecoderNorm:
        """One norm."""
        if isinstance(module, RectifiedNorm):
            return replace(self.norm(module.norm), rectified=True)
        found: Any = module
        sizes = getattr(found, "normalized_shape", None)  # only a LayerNorm has them
        if (self.facts.norm == "layer") != (sizes is not None):
            raise InputError(
                f"decoder: {type(module).__name__} is not the norm of this family"
                f" ({self.facts.norm!r}). gossamer.compile runs the model layer by layer."
            )
        eps = float(found.eps if hasattr(found, "eps") else found.variance_epsilon)
        if sizes is not None:
            weight = torch.ones(sizes) if found.weight is None else found.weight
            return DecoderNorm(
                weight, torch.zeros(sizes) if found.bias is None else found.bias, eps
            )
        weight = found.weight.detach().float()
        return DecoderNorm(weight + 1.0 if self.facts.norm == "rms + 1" else weight, None, eps)

    def rotation(self, layer: nn.Module) -> int:
        """The number of its angles in `rotations`; -1 if it does not rotate."""
        kind = self._rotation_kind(layer)
        return -1 if kind is None else self._kinds.index(kind)

    def cut(self, number: int) -> tuple[float, float]:
        """Of the ReLU of a layer: what it takes off, and the number up to which it gives 0."""
        if self.mixtures[number] is not None:
            return 0.0, 0.0
        return relu_cut(self.layers[number].get_submodule(self.facts.block.activation))

    def neurons(self, number: int, rows: str) -> PackedNeurons:
        """The feed-forward part of a layer, neuron by neuron."""
        parts, layer = self.facts.block, self.layers[number]
        if self.rules.activation != "relu" or self.mixtures[number] is not None:
            raise InputError(
                "decoder: active neurons need ReLU in every feed-forward part, and no experts."
                " Relufy the model and train it on: gossamer recipe show relufy-decoder."
            )
        if parts.expansion_segments != 1:
            raise InputError("decoder: active neurons need gate and up as layers of their own.")
        layers: list[Any] = [layer.get_submodule(name) for name in (*parts.expansions, parts.down)]
        gate, *up, down = list[Any](conv1d_to_linear(nn.ModuleList(layers)).children())
        return PackedNeurons(
            weight_of(gate).float(),
            weight_of(up[0]).float() if up else None,
            weight_of(down).float().T.contiguous(),
            gate_bias_N=gate.bias,
            up_bias_N=up[0].bias if up else None,
            cut=self.cut(number),
            rows=rows,
        )

    def _within_pattern(self, layer: nn.Module) -> int:
        """The window of a layer, or that of the pattern it was given; 0: all positions."""
        own = self._window(layer)
        for name, state in attention_states(layer).items():
            window = parse_attention(state.pattern).as_window
            if window is None:
                raise InputError(
                    f"decoder: {name} attends to '{state.pattern}', and of patterns the native"
                    " decoder runs one window, such as 'window:512'. gossamer.compile runs the"
                    " model layer by layer; rules for keys (--attention) are for models without"
                    " patterns."
                )
            if own and window > own:
                raise InputError(
                    f"decoder: {name} attends to '{state.pattern}', and has a window of {own} of"
                    " its own, which is shorter."
                )
            return 0 if window >= self.shape.context else window
        return own

    def _window(self, layer: nn.Module) -> int:
        owner, _, name = self.facts.window.rpartition(".")
        if self.facts.window_in_some and not hasattr(layer.get_submodule(owner), name):
            return 0
        found = self._read(layer, self.facts.window, None)
        if found is None:
            return 0
        if type(found) is not int or found < 1:
            raise InputError(
                f"decoder: a sliding window must be a whole number from 1, got {found!r}."
            )
        return 0 if found >= self.shape.context else found

    def _refuse_settings(self) -> None:
        for path, expected in self.facts.requires:
            found = self._read(self.model, path, None)
            if (found is not None and found is not False) != expected:
                raise InputError(
                    f"decoder: not supported in this model: {path} is"
                    f" {found if isinstance(found, bool | None) else 'set'}, expected it to be"
                    f" {'set' if expected else 'absent or False'}."
                )

    def _shape(self, context: int | None) -> DecoderShape:
        config = self._config
        most = num_positions(config)
        context = most if context is None else context
        if context < 1 or min(context, self._reach or context) > most:
            raise InputError(
                f"decoder: context must be between 1 and the {most} positions of this model, got"
                f" {context}. A text may be longer if tokens attend to sinks and a window that fit"
                f" into them, such as 'sinks:4+window:{max(most - 4, 1)}'."
            )
        self._turned = min(context, most)
        width, heads = config.hidden_size, config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        head_dim = getattr(config, "head_dim", None)
        if head_dim is None:
            if not heads or width % heads:
                raise InputError(
                    f"decoder: {heads} heads do not divide a width of {width}. The configuration"
                    " of this model and its weights do not agree."
                )
            head_dim = width // heads
        ffn = next((getattr(config, n) for n in _FFN if getattr(config, n, None) is not None), None)
        if ffn is None:  # GPT-2 leaves it to the width
            ffn = 4 * width
        return DecoderShape(width, heads, kv_heads, head_dim, ffn, config.vocab_size, context)

    def _rules(self) -> DecoderRules:
        facts, model = self.facts, self.model
        return DecoderRules(
            activation=self._activation(),
            layer_norm=facts.norm == "layer",
            gated=self._is_gated(),
            parallel=bool(self._same(facts.parallel, False)),
            interleaved=facts.interleaved,
            embedding_scale=self._number(model, facts.embedding_scale, 1.0),
            residual_scale=float(self._same(facts.residual_scale, 1.0)),
            logits_scale=1.0 / self._number(model, facts.logits_divisor, 1.0),
            score_cap=self._cap(self._same(facts.score_cap, None)),
            logits_cap=self._cap(self._read(model, facts.logits_cap, None)),
        )

    def _mixture(self, number: int) -> Mixture | None:
        if self.facts.experts is None:
            return None
        where = f"{self.facts.chain.layers}.{number}"
        return Mixture.of(self.facts.experts, self.layers[number], where, self._is_gated())

    def _is_gated(self) -> bool:
        block = self.facts.block
        return bool(len(block.expansions) * block.expansion_segments == 2)

    def _activation(self) -> str:
        parts = [
            layer.get_submodule(self.facts.block.activation) if own is None else own.activation
            for layer, own in zip(self.layers, self.mixtures, strict=True)
        ]
        names = {_activation_name(part) for part in parts}
        if any(own is not None and relu_states(own.activation) for own in self.mixtures):
            raise InputError("decoder: ReLUs of experts have no shift in the native decoder.")
        if not names:
            return "silu"
        if len(names) > 1 or not names <= set(_ACTIVATIONS.values()):
            known = ", ".join(dict.fromkeys(_ACTIVATIONS.values()))
            raise InputError(
                f"decoder: not supported in this model: activation {', '.join(sorted(names))}"
                f" (only one of {known} in all layers)."
            )
        return names.pop()

    def _rotation_kind(self, layer: nn.Module) -> str | None:
        """Which angles turn the heads of a layer: None for none, empty where there is one kind."""
        if not self.facts.rotary or not self._read(layer, self.facts.rotates, True):
            return None
        return str(self._read(layer, self.facts.rotary_by_type, ""))

    def _angles(self, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        """(cosines, sines) [context, P], as transformers computes them in fp32."""
        rotary: Any = self.model.get_submodule(self.facts.rotary)
        settings = getattr(self._config, "rope_parameters", None) or {}
        settings = settings.get(kind) or {} if kind else settings
        rope_type = settings.get("rope_type", "default")
        if rope_type not in _ROPE_TYPES:
            raise InputError(
                f"decoder: not supported in this model: rope type {rope_type!r} (only"
                f" {', '.join(_ROPE_TYPES)})."
            )
        if rope_type == _LONG and self.shape.context > settings[_LONG_FROM]:
            raise InputError(
                f"decoder: not supported in this model: rope type {_LONG!r} turns all positions of"
                f" texts over {settings[_LONG_FROM]} tokens otherwise, and the context is"
                f" {self.shape.context}. Use a context of at most {settings[_LONG_FROM]}."
            )
        # Up to the positions of the configuration, which no context exceeds, the frequencies of
        # "dynamic" are those that a model begins with; a call may have left others.
        prefix = f"{kind}_" if kind else ""
        frequencies = getattr(rotary, f"{prefix}original_inv_freq").float().cpu()
        scale = float(getattr(rotary, f"{prefix}attention_scaling"))
        if 2 * frequencies.numel() > self.shape.head_dim:
            raise InputError(
                f"decoder: {frequencies.numel()} rotated pairs do not fit heads of"
                f" {self.shape.head_dim}. The configuration of this model and its weights do not"
                " agree."
            )
        angles = torch.outer(torch.arange(self._turned, dtype=torch.float32), frequencies)
        return angles.cos() * scale, angles.sin() * scale

    def _positions(self) -> torch.Tensor | None:
        if not self.facts.positions:
            return None
        table: Any = self.model.get_submodule(self.facts.positions)
        first = int(getattr(table, "offset", 0))
        rows: torch.Tensor = table.weight.detach().float()[first : first + self.shape.context]
        if tuple(rows.shape) != (self.shape.context, self.shape.width):
            raise InputError(
                f"decoder: {self.facts.positions} holds {list(table.weight.shape)} numbers, too few"
                f" for {self.shape.context} positions of {self.shape.width}. The configuration of"
                " this model and its weights do not agree."
            )
        return rows

    def _read(self, owner: nn.Module, path: str, default: Any) -> Any:
        """An attribute of the model or of a layer; `default` where the family has none."""
        if not path:
            return default
        try:
            return attrgetter(path)(owner)
        except AttributeError:
            if path.startswith("config."):  # a setting that this configuration does not declare
                return default
            raise InputError(
                f"decoder: {type(owner).__name__} has no {path}; a part of it was replaced."
                " gossamer.compile runs the model layer by layer."
            ) from None

    def _number(self, owner: nn.Module, path: str, default: float) -> float:
        found = float(self._read(owner, path, default))
        if not math.isfinite(found) or found == 0:
            raise InputError(f"decoder: {path} must be a number other than 0, got {found}.")
        return found

    def _same(self, path: str, default: Any) -> Any:
        """What all layers agree on."""
        found = {self._read(layer, path, default) for layer in self.layers} or {default}
        if len(found) > 1:
            raise InputError(f"decoder: not supported in this model: layers differ in {path}.")
        return found.pop()

    def _cap(self, found: Any) -> float:
        if found is None:
            return 0.0
        if not float(found) > 0:
            raise InputError(f"decoder: a soft cap must be a positive number, got {found!r}.")
        return float(found)


def _activation_name(module: nn.Module) -> str:
    kind = type(module).__name__
    if isinstance(module, nn.GELU):
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    return _ACTIVATIONS.get(kind, kind)


def _refuse_extras(model: nn.Module) -> None:
    """Refuse what a call of the modules does, and the native decoder would not."""
    for name, module in model.named_modules():
        kind, reason = type(module), carried_by_calls(module)
        if (
            reason is None
            and kind_name(module) in ("linear", "experts")
            and form_of(module) != "packed"
        ):
            reason = carried(module)
        if reason is None and kind.__module__.split(".")[0] not in _LIBRARIES:
            reason = f"{kind.__name__} is a class of its own"
        if reason is not None:
            raise InputError(
                f"decoder: {name or kind.__name__}: {reason}. gossamer.compile runs the model layer"
                " by layer."
            )
