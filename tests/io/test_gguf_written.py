# SPDX-License-Identifier: Apache-2.0
"""gguf files that are written: read back by our reader and by the package gguf."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gossamer
from gossamer.errors import InputError
from gossamer.io import load_gguf
from gossamer.io.artifact.exports import save_gguf
from gossamer.io.gguf import gguf_tokenizer_files
from gossamer.io.gguf.blocks import QUANTISED, stored_as
from gossamer.nn.rounding import round_layer

transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
sys.path.insert(0, str(Path(__file__).parents[1] / "running"))

from decoder_models import make_model  # noqa: E402
from gguf_tools import tiny_gguf, tiny_llama  # noqa: E402
from test_gguf_families import ARCHITECTURES, CHANGED, logits  # noqa: E402


def types_of(path):
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_of_every_family_comes_back_to_the_bit(tmp_path, name):
    model = make_model(name, **CHANGED.get(name, {}))
    written = save_gguf(model, tmp_path / "m.gguf", beside={})
    assert not written.changed
    assert not written.has_tokenizer
    again = load_gguf(tmp_path / "m.gguf")
    assert type(again) is type(model)
    expected = logits(model)
    offset = 1e-6 if name.startswith("gemma") else 0  # 1 + w - 1 is rounded
    assert float((logits(again) - expected).abs().max()) <= offset * float(expected.abs().max())


def test_a_pruned_model_keeps_its_zeros(tmp_path):
    model = tiny_llama()
    gossamer.sparsify(model, sparsity=0.6)
    gossamer.compact(model)
    written = save_gguf(model, tmp_path / "m.gguf", beside={})
    assert (written.changed, written.lost_zeros) == (0, 0)
    again = load_gguf(tmp_path / "m.gguf")
    for name, layer in model.named_modules():
        if hasattr(layer, "to_dense"):
            assert torch.equal(again.get_submodule(name).weight, layer.to_dense().weight), name


@pytest.mark.parametrize(
    ("rounding", "kind"), [("int8", "Q8_0"), ("int4", "Q4_0"), ("int4_offset", "Q4_1")]
)
def test_weights_on_a_grid_take_its_type_without_loss(tmp_path, rounding, kind):
    model = tiny_llama(hidden_size=64, intermediate_size=128)
    for layer in model.model.layers:
        for part in layer.modules():
            if type(part) is torch.nn.Linear:
                round_layer(part, rounding)
    written = save_gguf(model, tmp_path / "m.gguf", beside={})
    assert written.changed == 0
    assert written.types[kind] == 14
    found = types_of(tmp_path / "m.gguf")
    assert {found[n] for n in found if n.startswith("blk") and "norm" not in n} == {kind}
    again = load_gguf(tmp_path / "m.gguf").state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(again[name], weight), name


def test_the_type_asked_for_rounds_and_says_so(tmp_path):
    model = tiny_llama(hidden_size=64, intermediate_size=128)
    gossamer.sparsify(model, sparsity=0.5)
    for kind in QUANTISED:
        written = save_gguf(model, tmp_path / f"{kind}.gguf", kind=kind, beside={})
        assert written.changed > 0
        assert 0 < written.error < {"Q8_0": 0.01, "Q4_0": 0.2, "Q4_1": 0.2}[kind]
        # Q4_1 has no zero of its own.
        assert (written.lost_zeros > 0) == (kind == "Q4_1")
        assert set(types_of(tmp_path / f"{kind}.gguf").values()) == {kind, "F32"}
    with pytest.raises(InputError, match="one of auto"):
        save_gguf(model, tmp_path / "x.gguf", kind="Q5_K", beside={})


@pytest.mark.parametrize("columns", [0, 1, 31, 32, 33, 64, 96])
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_blocks_of_every_size(rows, columns):
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    for kind in ("auto", "F32", "F16", "BF16", *QUANTISED):
        stored = stored_as(weight, kind)
        assert stored.kind == kind or columns % 32 or kind == "auto" or not rows or not columns
        if not weight.numel():
            assert stored.data.size == 0
            continue
        read = gguf.quants.dequantize(stored.data, gguf.GGMLQuantizationType[stored.kind])
        apart = np.abs(read.reshape(weight.shape) - weight.numpy())
        assert stored.changed == int((apart != 0).sum())
        if kind == "auto":
            assert not stored.changed


def test_a_file_that_was_read_is_written_again(tmp_path):
    """What came in Q8_0 and Q4_1 goes out in the same types."""
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(1))
    for kind in QUANTISED:
        rounded = stored_as(weight, kind)
        read = gguf.quants.dequantize(rounded.data, gguf.GGMLQuantizationType[kind])
        again = stored_as(torch.from_numpy(read), "auto")
        assert again.changed == 0
        assert again.kind == kind or kind == "Q4_1"  # its ends may be rounded to float16
        assert again.data.nbytes <= 2 * read.size


def test_the_tokenizer_goes_along(tmp_path):
    files = gguf_tokenizer_files(tiny_gguf().write(tmp_path / "one.gguf"))
    files["chat_template.jinja"] = b"{{ messages }}"
    written = save_gguf(tiny_llama(), tmp_path / "two.gguf", beside=files)
    assert written.has_tokenizer
    again = gguf_tokenizer_files(tmp_path / "two.gguf")
    assert json.loads(again["tokenizer.json"]) == json.loads(files["tokenizer.json"])
    assert json.loads(again["tokenizer_config.json"])["chat_template"] == "{{ messages }}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["model"].update(type="Unigram"), "expected BPE"),
        (lambda c: c.update(pre_tokenizer={"type": "Whitespace"}), "cut in a way that has no name"),
        (lambda c: c.update(normalizer={"type": "Lowercase"}), "normalizer would be others"),
        (lambda c: c["model"].pop("vocab"), "is not a tokenizer that gguf files hold"),
    ],
)
def test_a_tokenizer_that_would_be_another_is_refused(tmp_path, change, words):
    files = gguf_tokenizer_files(tiny_gguf().write(tmp_path / "one.gguf"))
    content = json.loads(files["tokenizer.json"])
    change(content)
    files["tokenizer.json"] = json.dumps(content).encode()
    with pytest.raises(InputError, match=words):
        save_gguf(tiny_llama(), tmp_path / "two.gguf", beside=files)
    assert not (tmp_path / "two.gguf").exists()


def test_what_a_file_cannot_hold_is_named(tmp_path):
    with pytest.raises(InputError, match="hidden_act is gelu"):
        save_gguf(tiny_llama(hidden_act="gelu"), tmp_path / "m.gguf", beside={})
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    bert = transformers.BertModel(config)
    with pytest.raises(InputError, match="BertModel: cannot be written to gguf"):
        save_gguf(bert, tmp_path / "m.gguf", beside={})
    with pytest.raises(InputError, match="decoders of transformers"):
        save_gguf(torch.nn.Linear(2, 2), tmp_path / "m.gguf", beside={})
    broken = tiny_llama()
    broken.model.norm.weight.data[0] = float("nan")
    with pytest.raises(InputError, match=r"model\.norm\.weight: .* finite"):
        save_gguf(broken, tmp_path / "m.gguf", beside={})
    assert list(tmp_path.iterdir()) == []
