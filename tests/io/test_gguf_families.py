# SPDX-License-Identifier: Apache-2.0
"""gguf files of every family, written with the writer and the names of the package gguf.

Where transformers reads an architecture itself, its reader is a second witness.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gossamer.errors import ArtifactError
from gossamer.io import load_gguf
from gossamer.io.gguf.header import TENSOR_TYPES
from gossamer.nn.families import answers

transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
for folder in ("tests/running", "benchmarks"):
    sys.path.insert(0, str(Path(__file__).parents[2] / folder))

from decoder_models import CONTEXT, make_model  # noqa: E402

from support.gguf_files import write_gguf as write  # noqa: E402

IDS = torch.arange(3, 43).unsqueeze(0)
ARCHITECTURES = {
    "llama": "llama",
    "llama3 rope": "llama",
    "linear rope": "llama",
    "yarn rope": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "phi3": "phi3",
    "phi3 longrope": "phi3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "olmo2": "olmo2",
    "smollm3": "smollm3",
    "granite": "granite",
    "gpt-neox": "gptneox",
    "gpt2": "gpt2",
}
LLAMA3 = {
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "head_dim": 16,
}
# What files cannot hold, or llama.cpp knows in one form only.
CHANGED = {
    "llama3 rope": LLAMA3,
    "qwen2": {"use_sliding_window": False},
    "gemma2": {"query_pre_attn_scalar": 10},
    "gemma3": {"query_pre_attn_scalar": 10},
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 5, "no_rope_layers": None},
    "gpt2": {"scale_attn_by_inverse_layer_idx": False},
}


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


def test_every_architecture_is_here():
    assert set(ARCHITECTURES.values()) == {n.architecture for n in answers("gguf").values()}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_comes_back(tmp_path, name):
    model = make_model(name, **CHANGED.get(name, {}))
    path = write(model, ARCHITECTURES[name], tmp_path / "m.gguf")
    again = load_gguf(path)
    assert type(again) is type(model)
    assert set(again.state_dict()) == set(model.state_dict())
    expected = logits(model)
    assert float((logits(again) - expected).abs().max()) < 1e-5 * float(expected.abs().max())


# Of these, transformers' own reader takes all settings that the model has.
@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2"])
def test_transformers_reads_the_same(tmp_path, name):
    model = make_model(name, **CHANGED.get(name, {}))
    path = write(model, ARCHITECTURES[name], tmp_path / "m.gguf")
    other = type(model).from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    ours, theirs = load_gguf(path).state_dict(), other.state_dict()
    for key, weight in theirs.items():
        turned = name == "gpt2" and ".c_" in key and weight.ndim == 2  # a Linear stands there
        torch.testing.assert_close(ours[key].T if turned else ours[key], weight)


def test_quantised_rows_that_are_put_in_order(tmp_path):
    model = make_model("llama", hidden_size=96, intermediate_size=64, head_dim=16)
    kind = gguf.GGMLQuantizationType.Q8_0
    path = write(model, "llama", tmp_path / "m.gguf", quantise=kind)
    found = load_gguf(path).model.layers[1].self_attn.k_proj.weight.detach()
    wanted = model.model.layers[1].self_attn.k_proj.weight
    assert 0 < float((found - wanted).abs().max()) <= float(wanted.abs().max()) / 127


def test_every_type_that_the_package_dequantises_is_read():
    known = {kind.name for kind in gguf.quants._type_traits} | {"F32", "F16"}
    assert known == set(TENSOR_TYPES)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.add_sliding_window_pattern([True]), "true or false for each of 3 blocks"),
        (lambda w: w.add_expert_count(4), "expert_count cannot be read"),
        (lambda w: w.add_string("gemma3.rope.scaling.type", "su"), "rope scaling 'su'"),
        (
            lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
            "rope.scaling.factor must be a positive number",
        ),
        (
            lambda w: (
                w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
                w.add_rope_scaling_yarn_ext_factor(0.5),
            ),
            "yarn_ext_factor 0.5 cannot be read",
        ),
        (
            lambda w: w.add_tensor("rope_freqs.weight", np.ones(5, np.float32)),
            "have no place in a Gemma3ForCausalLM",
        ),
        (
            lambda w: w.add_tensor("blk.0.attn_q.bias", np.ones(60, np.float32)),
            "'blk.0.attn_q.bias' has no place in a Gemma3ForCausalLM",
        ),
    ],
)
def test_files_that_say_more_than_can_be_read_are_refused(tmp_path, change, words):
    model = make_model("gemma3", layer_types=["full_attention"] * 3)

    def without_pattern(writer):
        writer.kv_data[0].pop("gemma3.attention.sliding_window_pattern")
        change(writer)

    path = write(model, "gemma3", tmp_path / "m.gguf", without_pattern)
    with pytest.raises(ArtifactError, match=words):
        load_gguf(path, max_bytes=1)


def test_gemma_without_a_pattern_has_that_of_its_class(tmp_path):
    model = make_model("gemma3", layer_types=None, num_hidden_layers=7)
    path = write(
        model,
        "gemma3",
        tmp_path / "m.gguf",
        lambda w: w.kv_data[0].pop("gemma3.attention.sliding_window_pattern"),
    )
    found = load_gguf(path).config
    assert found.layer_types == ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    assert found.max_position_embeddings == CONTEXT
