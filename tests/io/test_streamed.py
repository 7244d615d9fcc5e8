# SPDX-License-Identifier: Apache-2.0
"""Models whose weights are fetched one by one: the same engines as of models that were loaded."""

import numpy as np
import pytest
import torch
import transformers
from gguf_tools import tiny_gguf

import gossamer
from gossamer.errors import ArtifactError
from gossamer.io.gguf.common_types import numbers_of
from gossamer.io.gguf.header import TENSOR_TYPES
from gossamer.io.streaming import stream
from gossamer.nn.streamed import streamed_model
from gossamer.running.decoder import DecoderEngine

IDS = [1, 5, 7, 2, 9, 30, 4]
SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def llama(**more):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **more)).eval()
        for parameter in model.parameters():
            parameter.data.normal_(0.1, 0.5)
    return model


def assert_same(path, dtypes=("int8", "int4", "fp32")):
    for dtype in dtypes:
        with stream(path) as streamed:
            assert streamed is not None
            mine = DecoderEngine(streamed.model, dtype)
        wanted = DecoderEngine(gossamer.load(path), dtype)
        assert torch.equal(mine.logits(IDS), wanted.logits(IDS))
        assert mine.size == wanted.size
        assert mine.kernels == wanted.kernels


def test_a_gguf_file(tmp_path):
    pytest.importorskip("gguf")
    assert_same(tiny_gguf().write(tmp_path / "tiny.gguf"))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("form", ["dense", "masked", "compact"])
def test_an_artifact(tmp_path, form, tied):
    model = llama(tie_word_embeddings=tied)
    if form != "dense":
        gossamer.sparsify(model, sparsity=0.6, ignore=["lm_head"])
    if form == "compact":
        gossamer.compact(model)
    gossamer.save(model, tmp_path / "model")
    assert_same(tmp_path / "model")


def test_an_artifact_in_a_pattern_and_with_other_heads(tmp_path):
    model = llama(head_dim=16, rms_norm_eps=1e-5, rope_theta=5000.0)
    gossamer.sparsify(model, sparsity=0.5, pattern="2:4", ignore=["lm_head"])
    gossamer.save(model, tmp_path / "model")
    assert_same(tmp_path / "model")


def test_a_damaged_artifact_is_refused(tmp_path):
    gossamer.save(llama(), tmp_path / "model")
    (path,) = (tmp_path / "model").glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError), stream(tmp_path / "model"):
        pass


def test_a_gguf_file_with_a_missing_tensor_is_refused(tmp_path):
    made = tiny_gguf()
    del made.tensors[3]
    with pytest.raises(ArtifactError, match="missing"), stream(made.write(tmp_path / "t.gguf")):
        pass


@pytest.mark.parametrize(
    "more",
    [
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ],
)
def test_what_is_not_understood_is_built_by_transformers(tmp_path, more):
    assert streamed_model("LlamaForCausalLM", {**SIZES, **more}) is None
    gossamer.save(llama(**more), tmp_path / "model")
    with stream(tmp_path / "model") as streamed:
        assert streamed is None


def test_an_unknown_field_is_not_understood():
    assert streamed_model("LlamaForCausalLM", SIZES) is not None
    assert streamed_model("LlamaForCausalLM", {**SIZES, "new_scale": 2.0}) is None
    assert streamed_model("LlamaForCausalLM", {**SIZES, "num_attention_heads": 3}) is None
    assert streamed_model("LlamaForCausalLM", {**SIZES, "hidden_size": -1}) is None
    assert streamed_model("BertModel", SIZES) is None


@pytest.mark.parametrize("name", ["F32", "F16", "Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("blocks", [0, 1, 7])
def test_numbers_are_those_of_the_package(name, blocks):
    gguf = pytest.importorskip("gguf")
    kind = TENSOR_TYPES[name]
    raw = np.random.default_rng(0).integers(0, 256, blocks * kind.block_bytes, dtype=np.uint8)
    mine = numbers_of(raw.tobytes(), kind.code)
    if not blocks:
        assert mine.size == 0
        return
    stored = {"F32": np.float32, "F16": np.float16}.get(name, np.uint8)
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(raw.view(stored), gguf.GGMLQuantizationType(kind.code))
    assert np.array_equal(mine.reshape(-1), wanted.reshape(-1).astype(np.float32), equal_nan=True)


def test_other_types_are_left_to_the_package():
    assert numbers_of(b"", TENSOR_TYPES["Q6_K"].code) is None
