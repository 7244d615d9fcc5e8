# SPDX-License-Identifier: Apache-2.0
"""Small random models of every family, and a way to run them all alike."""

import pytest
import torch

from gossamer.zoo import TinyEncoder

VOCAB, HEADS, FILTERS, BLOCKS = 50, 4, 24, 3
FAMILY_NAMES = (
    "bert", "roberta", "distilbert", "gpt2", "opt", "opt-post-norm", "llama", "qwen2", "mistral",
    "zoo",
)  # fmt: skip
# Uneven blocks, one of them without heads and filters.
UNEVEN = [[0, 2], [1, 3, 5], [], [], [1, 2, 3], list(range(7, FILTERS))]


def make_model(name, dtype=torch.float32):
    """Three blocks of width 16, weights with enough noise that every unit matters."""
    torch.manual_seed(3)
    if name == "zoo":
        model = TinyEncoder(
            VOCAB, 3, width=16, num_heads=HEADS, num_layers=BLOCKS, ffn_width=FILTERS
        )
    else:
        model = _transformers_model(name)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.to(dtype).eval()


def _transformers_model(name):
    t = pytest.importorskip("transformers")
    plain = {
        "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": BLOCKS,
        "num_attention_heads": HEADS, "intermediate_size": FILTERS, "max_position_embeddings": 32,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    grouped = {**plain, "num_attention_heads": 8, "num_key_value_heads": HEADS}
    opt = {**plain, "ffn_dim": FILTERS, "word_embed_proj_dim": 16}
    opt.pop("intermediate_size")
    build = {
        "bert": lambda: t.BertModel(t.BertConfig(**plain)),
        "roberta": lambda: t.RobertaModel(t.RobertaConfig(**plain)),
        "distilbert": lambda: t.DistilBertModel(
            t.DistilBertConfig(
                vocab_size=VOCAB, dim=16, n_layers=BLOCKS, n_heads=HEADS, hidden_dim=FILTERS
            )
        ),
        "gpt2": lambda: t.GPT2LMHeadModel(
            t.GPT2Config(
                vocab_size=VOCAB, n_embd=16, n_layer=BLOCKS, n_head=HEADS, n_inner=FILTERS,
                n_positions=32, bos_token_id=1, eos_token_id=2,
            )
        ),
        "opt": lambda: t.OPTForCausalLM(t.OPTConfig(**opt)),
        "opt-post-norm": lambda: t.OPTForCausalLM(
            t.OPTConfig(**opt, do_layer_norm_before=False)
        ),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**grouped)),
        "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**grouped)),
        "mistral": lambda: t.MistralForCausalLM(t.MistralConfig(**grouped)),
    }  # fmt: skip
    return build[name]()


def run(model, ids):
    """The first tensor a model returns."""
    result = model(ids)
    return result if isinstance(result, torch.Tensor) else result[0]


def make_ids(rows=2, tokens=7, seed=0):
    return torch.randint(3, VOCAB, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def loss(model, ids):
    """Mean over rows of a term of each row alone."""
    return run(model, ids).flatten(1).square().mean(1).mean()
