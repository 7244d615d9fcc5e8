# SPDX-License-Identifier: Apache-2.0
"""Patterns in models of transformers: equal where full, windows as their own, padding kept."""

import pytest
import torch

from gossamer.errors import InputError
from gossamer.nn.attention import replace_attention
from gossamer.nn.families import answers

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 256,
}
FAMILIES = {
    "bert": SMALL,
    "roberta": SMALL,
    "llama": SMALL | {"num_key_value_heads": 2},
    "mistral": SMALL | {"num_key_value_heads": 2, "sliding_window": None},
    "qwen2": SMALL | {"num_key_value_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 256},
    "opt": {
        "hidden_size": 32,
        "ffn_dim": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 64,
        "max_position_embeddings": 256,
        "word_embed_proj_dim": 32,
    },
    "modernbert": SMALL | {"local_attention": 16, "pad_token_id": 0},
    "albert": SMALL | {"embedding_size": 16},
    "distilbert": {
        "dim": 32,
        "hidden_dim": 48,
        "n_layers": 2,
        "n_heads": 4,
        "vocab_size": 64,
        "max_position_embeddings": 256,
    },
    "electra": SMALL | {"embedding_size": 16},
    "nomic_bert": SMALL,
    "xlm-roberta": SMALL,
    "camembert": SMALL,
    "gpt_neox": SMALL,
    "qwen3": SMALL | {"num_key_value_heads": 2, "head_dim": 8},
    "phi3": SMALL | {"num_key_value_heads": 2, "pad_token_id": 0},
    "gemma": SMALL | {"num_key_value_heads": 2, "head_dim": 8},
    "gemma2": SMALL | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 16},
    "gemma3_text": SMALL | {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 16},
    "olmo2": SMALL | {"num_key_value_heads": 2},
    "smollm3": SMALL | {"num_key_value_heads": 2, "pad_token_id": 0},
    "granite": SMALL | {"num_key_value_heads": 2},
    "mixtral": SMALL | {"num_key_value_heads": 2, "num_local_experts": 2},
}
# Images: one token for each patch.
VISION = {
    name: {k: v for k, v in SMALL.items() if "vocab" not in k and "position" not in k}
    | {"image_size": 32, "patch_size": 4}
    for name in ("vit", "dinov2", "clip_vision_model", "siglip_vision_model")
}
# Families of the table that only models of other classes have: their layers are those of Qwen2.
ALIKE = {"qwen2_moe", "qwen3_moe", "olmoe"}


def model_of(family, sizes=None, **changes):
    torch.manual_seed(0)
    settings = FAMILIES[family] if sizes is None else sizes
    config = transformers.AutoConfig.for_model(family, **{**settings, **changes})
    return transformers.AutoModel.from_config(config).eval()


def ids(tokens=100):
    return torch.randint(1, 64, (2, tokens), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", FAMILIES)
def test_full_computes_what_the_family_does(family):
    model = model_of(family)
    tokens = ids()
    lengths = torch.tensor([[100], [61]])
    mask = (torch.arange(100) < lengths).long()
    with torch.no_grad():
        expected = model(tokens, attention_mask=mask)[0]
        names = replace_attention(model, "full")
        found = model(tokens, attention_mask=mask)[0]
        assert len(names) == (1 if family == "albert" else 2)
        kept = mask.bool()
        torch.testing.assert_close(found[kept], expected[kept], rtol=1e-4, atol=1e-4)
        replace_attention(model, "window:4")
        assert not torch.allclose(model(tokens, attention_mask=mask)[0][kept], expected[kept], 1e-3)


@pytest.mark.parametrize("family", VISION)
def test_towers_of_images_take_patterns(family):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **VISION[family])
    model = transformers.AutoModel.from_config(config).eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(images)[0]
        replace_attention(model, "full")
        torch.testing.assert_close(model(images)[0], expected, rtol=1e-4, atol=1e-4)
        replace_attention(model, "window:4")
        assert not torch.allclose(model(images)[0], expected, 1e-3)


def test_every_family_of_the_table_is_tried_here_or_says_why_not():
    known = {facts.model_type for facts in answers("classes").values()}
    towers = {"clip": "clip_vision_model", "siglip": "siglip_vision_model", "gemma3": "gemma3_text"}
    tried = {*FAMILIES, *VISION}
    assert {name for name in known if towers.get(name, name) not in tried} <= ALIKE | {"mpnet"}
    model = model_of("mpnet", SMALL)
    with pytest.raises(InputError, match=r"family MPNet compute their scores themselves"):
        replace_attention(model, "window:4")


def test_mistrals_window_is_the_same_pattern():
    tokens = ids()
    with torch.no_grad():
        windowed = model_of("mistral", sliding_window=9)
        expected = windowed(tokens)[0]
        full = model_of("mistral")
        replace_attention(full, "window:9")
        torch.testing.assert_close(full(tokens)[0], expected, rtol=1e-4, atol=1e-4)
        replace_attention(windowed, "full")
        torch.testing.assert_close(windowed(tokens)[0], expected, rtol=1e-4, atol=1e-4)


def test_generation_with_kept_keys_goes_on():
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("llama", **FAMILIES["llama"])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    tokens = ids(20)[:1]
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(tokens, **options)
    replace_attention(model, "full")
    assert torch.equal(model.generate(tokens, **options), expected)


def test_what_cannot_be_is_said():
    model = model_of("llama")
    replace_attention(model, "window:9")
    mask = torch.ones(2, 100, dtype=torch.long)
    mask[0, :3] = 0
    with pytest.raises(InputError, match="Pad on the right"):
        model(ids(), attention_mask=mask)
    with pytest.raises(InputError, match="cannot be changed"):
        replace_attention(model, "window:9", alibi=True)
    mistral = model_of("mistral", sliding_window=9)
    replace_attention(mistral, "window:20")
    with pytest.raises(InputError, match="own window of 9"):
        mistral(ids())
