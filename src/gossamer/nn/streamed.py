# SPDX-License-Identifier: Apache-2.0
"""Models of known families whose weights stay in their file until each is asked for.

`streamed_model` makes the modules and attributes that the family's row names, as the class of
transformers has them, without transformers and without weights. Such a model computes nothing: who
packs it calls `fetch` for one module after the other, so that no dense model is ever in memory.
Only configurations of which every field is understood are taken; None means that transformers has
to build the model.

Legend: P rotated pairs of a head.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from gossamer.formats import SparseMatrix
from gossamer.nn.families import answers
from gossamer.nn.forms import to_compact

__all__ = ["StreamedModel", "streamed_model"]

# Gives the tensor of a Parameter by its name in a state dict.
Read = Callable[[str], torch.Tensor | SparseMatrix]
# Fields that say nothing about what is computed in inference.
_SILENT = {
    "architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "use_cache",
    "initializer_range", "attention_dropout", "pad_token_id", "bos_token_id", "eos_token_id",
    "pretraining_tp", "is_llama_config", "rope_interleaved",
}  # fmt: skip
# Fields of `Llama`, what they are where a file leaves them out; None: it has to say.
_SIZES: dict[str, Any] = {
    "vocab_size": None, "hidden_size": None, "intermediate_size": None, "num_hidden_layers": None,
    "num_attention_heads": None, "num_key_value_heads": 0, "head_dim": 0,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
    "rope_theta": 10000.0, "rope_scaling": None, "rope_parameters": None,
}  # fmt: skip
_FALSE_ONLY = ("attention_bias", "mlp_bias", "rope_interleaved")


class _Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, device="meta"), requires_grad=False)
        self.variance_epsilon = eps


class _Rotary(nn.Module):
    """Frequencies as transformers computes them."""

    original_inv_freq: torch.Tensor

    def __init__(self, theta: float, head_dim: int) -> None:
        super().__init__()
        even_P = torch.arange(0, head_dim, 2, dtype=torch.int64).float()
        frequencies_P = 1.0 / (theta ** (even_P / head_dim))
        self.register_buffer("original_inv_freq", frequencies_P, persistent=False)
        self.attention_scaling = 1.0


class StreamedModel(nn.Module):
    """The modules of a model, without weights but those of norms.

    Attributes:
        config: fields of its configuration.
    """

    def __init__(self, facts: Any, config: Mapping[str, Any], theta: float) -> None:
        super().__init__()
        self.config = SimpleNamespace(**config)
        self._read: Read | None = None
        width, heads, dim = (config[n] for n in ("hidden_size", "num_attention_heads", "head_dim"))
        parts, chain = facts.block, facts.chain
        queries, keys = heads * dim, config["num_key_value_heads"] * dim
        ffn, vocab = config["intermediate_size"], config["vocab_size"]
        shapes = dict.fromkeys(parts.projections[1:], (keys, width))
        shapes |= {parts.projections[0]: (queries, width), parts.output: (width, queries)}
        shapes |= {**dict.fromkeys(parts.expansions, (ffn, width)), parts.down: (width, ffn)}
        layers = nn.ModuleList()
        for _ in range(config["num_hidden_layers"]):
            block = nn.Module()
            for place, (rows, columns) in shapes.items():
                _put(block, place, nn.Linear(columns, rows, bias=False, device="meta"))
            for place in parts.norms:
                _put(block, place, _Norm(width, config["rms_norm_eps"]))
            _put(block, parts.activation, nn.SiLU())
            owner, _, name = facts.scale.rpartition(".")
            setattr(block.get_submodule(owner), name, dim**-0.5)
            layers.append(block)
        table = nn.Embedding(vocab, width, device="meta")
        head = nn.Linear(width, vocab, bias=False, device="meta")
        if config["tie_word_embeddings"]:
            head.weight = table.weight
        _put(self, chain.front[0], table)
        _put(self, chain.layers, layers)
        _put(self, chain.back[0], _Norm(width, config["rms_norm_eps"]))
        _put(self, chain.back[1], head)
        _put(self, facts.rotary, _Rotary(theta, dim))

    def read_from(self, read: Read) -> None:
        """Say where weights come from; those of norms are read now."""
        self._read = read
        for path, module in self.named_modules():
            if isinstance(module, _Norm):
                weight = read(f"{path}.weight")
                assert isinstance(weight, torch.Tensor)  # noqa: S101  (a vector has no mask)
                module.weight = nn.Parameter(weight, requires_grad=False)

    def fetch(self, path: str) -> nn.Module:
        """A module with its weight, which nobody else holds."""
        module = self.get_submodule(path)
        if self._read is None or not isinstance(module, nn.Linear | nn.Embedding):
            return module
        rows, columns = module.weight.shape
        found = self._read(f"{path}.weight")
        if isinstance(found, SparseMatrix):
            return to_compact(module, found.values, found.positions.bits(), found.pattern)
        weight = nn.Parameter(found, requires_grad=False)
        made: nn.Linear | nn.Embedding
        if isinstance(module, nn.Linear):
            made = nn.Linear(columns, rows, bias=False, device="meta")
        else:
            made = nn.Embedding(rows, columns, device="meta")
        made.weight = weight
        return made


def streamed_model(name: str, config: Mapping[str, Any]) -> StreamedModel | None:
    """The model of class `name` without weights; None if transformers has to build it.

    Args:
        name: of a class that gives logits.
        config: what config.json says.
    """
    facts = next((f for f in answers("decoder").values() if f.model == name), None)
    if facts is None or not facts.streams or set(config) - _SILENT - set(_SIZES):
        return None
    full = _SIZES | dict(config)
    full["num_key_value_heads"] = full["num_key_value_heads"] or full["num_attention_heads"]
    sizes = [
        full[field] for field, default in _SIZES.items() if default is None and "rope" not in field
    ]
    sizes += [full["num_key_value_heads"], full["max_position_embeddings"]]
    if any(type(size) is not int or not 1 <= size < 2**24 for size in sizes):
        return None
    if not full["head_dim"] and full["hidden_size"] % full["num_attention_heads"]:
        return None
    full["head_dim"] = full["head_dim"] or full["hidden_size"] // full["num_attention_heads"]
    rope = full["rope_parameters"] or {"rope_type": "default", "rope_theta": full["rope_theta"]}
    theta: Any = rope.get("rope_theta")
    eps = full["rms_norm_eps"]
    understood = (
        set(rope) == {"rope_type", "rope_theta"}
        and rope["rope_type"] == "default"
        and full["rope_scaling"] is None
        and type(theta) in (int, float)
        and type(eps) is float
        and type(full["head_dim"]) is int
        and 2 <= full["head_dim"] <= 1024
        and full["head_dim"] % 2 == 0
        and full["num_attention_heads"] % full["num_key_value_heads"] == 0
        and full["hidden_act"] == "silu"
        and type(full["tie_word_embeddings"]) is bool
        and not any(full.get(field) for field in _FALSE_ONLY)
        and full.get("pretraining_tp", 1) == 1
    )
    if not understood:
        return None
    for field in ("pad_token_id", "bos_token_id", "eos_token_id", "model_type"):
        full.setdefault(field, None)
    full["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    # Engines know classes by their names.
    kind = type(name, (StreamedModel,), {"__module__": __name__})
    made: StreamedModel = kind(facts, full, float(theta)).eval()
    return made


def _put(root: nn.Module, path: str, module: nn.Module) -> None:
    """Set a module at a dotted path; modules on the way are made."""
    *way, name = path.split(".")
    for step in way:
        if step not in root._modules:
            root.add_module(step, nn.Module())
        root = root.get_submodule(step)
    root.add_module(name, module)
