# SPDX-License-Identifier: Apache-2.0
"""gguf files: the model transformers would build, or our error before memory is taken."""

import dataclasses
import random
import struct
import sys

import numpy as np
import pytest
import torch
from gguf_tools import (
    ARRAY,
    BF16,
    F16,
    F32,
    FLOAT32,
    INT32,
    Q4_1,
    Q8_0,
    SIZES,
    STRING,
    UINT32,
    Gguf,
    Tensor,
    byte_characters,
    llama_settings,
    llama_tensors,
    text,
    tiny_gguf,
    tiny_llama,
)

from gossamer.errors import ArtifactError, GossamerError, InputError, ResourceError
from gossamer.io import load, load_gguf, read_beside
from gossamer.io.gguf.header import MAX_ITEMS, TENSOR_TYPES, open_gguf
from gossamer.io.gguf.settings import read_settings

pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
IDS = torch.arange(3, 23).unsqueeze(0)


def output(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def header_of(path):
    file, header = open_gguf(path)
    file.close()
    return header


def read_all(path):
    """Everything of a file but its weights."""
    header = header_of(path)
    read_settings(header, str(path))
    return read_beside(path)


@pytest.mark.parametrize("tied", [True, False])
def test_a_llama_comes_back_bit_by_bit(tmp_path, tied):
    model = tiny_llama(tie_word_embeddings=tied)
    path = Gguf(llama_settings(), llama_tensors(model)).write(tmp_path / "m.gguf")
    again = load(path)
    assert type(again) is type(model)
    assert not again.training
    state, expected = again.state_dict(), model.state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert torch.equal(output(again), output(model))
    shared = again.lm_head.weight is again.model.embed_tokens.weight
    assert shared == tied
    for name, value in SIZES.items():
        if name not in ("tie_word_embeddings", "rope_theta"):
            assert getattr(again.config, name) == value, name


def test_a_head_width_of_its_own(tmp_path):
    model = tiny_llama(head_dim=16)
    file = Gguf(llama_settings(), llama_tensors(model))
    for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        file.settings[f"llama.{name}"] = (UINT32, 16)
    again = load_gguf(file.write(tmp_path / "m.gguf"))
    assert torch.equal(output(again), output(model))


def packed(kind, weight):
    """(bytes, the values they stand for in float64), block by block from the layout."""
    raw, values = b"", []
    for block in weight.reshape(-1, 32).double().numpy():
        if kind == Q8_0:
            scale = np.float16(np.abs(block).max() / 127 or 1)
            codes = np.round(block / float(scale)).astype(np.int8)
            raw += scale.tobytes() + codes.tobytes()
            values.append(codes.astype(np.float64) * float(scale))
        elif kind == Q4_1:
            low = np.float16(block.min())
            scale = np.float16((block.max() - block.min()) / 15 or 1)
            codes = np.clip(np.round((block - float(low)) / float(scale)), 0, 15).astype(np.uint8)
            raw += scale.tobytes() + low.tobytes() + (codes[:16] | codes[16:] << 4).tobytes()
            values.append(codes * float(scale) + float(low))
        elif kind == F16:
            raw += block.astype(np.float16).tobytes()
            values.append(block.astype(np.float16).astype(np.float64))
        else:
            rounded = torch.from_numpy(block).to(torch.bfloat16)
            raw += rounded.view(torch.uint8).numpy().tobytes()
            values.append(rounded.double().numpy())
    return raw, torch.from_numpy(np.concatenate(values)).reshape(weight.shape)


@pytest.mark.parametrize("kind", [Q8_0, Q4_1, F16, BF16])
def test_quantised_weights_are_the_values_they_stand_for(tmp_path, kind):
    file = tiny_gguf()
    expected = {}
    for number, tensor in enumerate(file.tensors):
        if len(tensor.shape) == 2 and ".attn_q" not in tensor.name and ".attn_k" not in tensor.name:
            weight = torch.frombuffer(bytearray(tensor.data), dtype=torch.float32)
            raw, values = packed(kind, weight.reshape(tensor.shape))
            file.tensors[number] = dataclasses.replace(tensor, kind=kind, data=raw)
            expected[tensor.name] = values
    model = load_gguf(file.write(tmp_path / "m.gguf"))
    found = {
        "token_embd.weight": model.model.embed_tokens.weight,
        "blk.1.ffn_down.weight": model.model.layers[1].mlp.down_proj.weight,
        "blk.0.attn_v.weight": model.model.layers[0].self_attn.v_proj.weight,
        "blk.1.attn_output.weight": model.model.layers[1].self_attn.o_proj.weight,
    }
    for name, weight in found.items():
        assert weight.dtype is torch.float32
        torch.testing.assert_close(weight.detach().double(), expected[name], rtol=1e-6, atol=1e-7)


def test_sizes_of_types_agree_with_the_package():
    for name, kind in TENSOR_TYPES.items():
        known = gguf.GGMLQuantizationType[name]
        assert known.value == kind.code
        assert gguf.GGML_QUANT_SIZES[known] == (kind.block, kind.block_bytes)
        raw = np.zeros((2, kind.block_bytes), dtype=np.uint8)
        if name in ("F32", "F16"):
            raw = raw.view(np.float32 if name == "F32" else np.float16)
        assert gguf.quants.dequantize(raw, known).shape == (2, kind.block)


def test_the_reader_of_the_package_agrees(tmp_path):
    path = tiny_gguf().write(tmp_path / "m.gguf")
    reader, header = gguf.GGUFReader(str(path)), header_of(path)
    assert {t.name: tuple(map(int, reversed(t.shape))) for t in reader.tensors} == {
        name: tensor.shape for name, tensor in header.tensors.items()
    }
    assert {t.name: int(t.data_offset) for t in reader.tensors} == {
        name: tensor.begin for name, tensor in header.tensors.items()
    }
    for key, value in header.settings.items():
        assert reader.fields[key].contents() == value, key


# The tokenizer.


@pytest.fixture
def tokenizer(tmp_path):
    from tokenizers import Tokenizer

    files = read_beside(tiny_gguf().write(tmp_path / "m.gguf"))
    assert sorted(files) == ["tokenizer.json", "tokenizer_config.json"]
    return Tokenizer.from_str(files["tokenizer.json"].decode())


def test_digits_stay_apart_and_merges_apply(tokenizer):
    # Without the cut, "1 2" would be merged.
    assert tokenizer.encode("hello 12 w").tokens == ["hell", "o", "Ġ", "1", "2", "Ġw"]
    assert tokenizer.encode("a<end>b").ids[1] == 2
    assert tokenizer.get_vocab_size() == SIZES["vocab_size"]


@pytest.mark.parametrize(
    ("cut", "text", "tokens"),
    [
        ("refact", "he 12", ["he", "Ġ", "1", "2"]),
        ("olmo", "he 12", ["he", "Ġ", "12"]),
        ("dbrx", "he12\n\nhe", ["he", "12", "Ċ", "Ċ", "he"]),
        ("llama-bpe", "12 hell", ["<start>", "12", "Ġ", "hell"]),
        ("qwen2", "12 he\u0301", ["1", "2", "Ġ", "h", "Ã", "©"]),
    ],
)
def test_texts_are_cut_as_the_file_names_it(tmp_path, cut, text, tokens):
    from tokenizers import Tokenizer

    file = tiny_gguf()
    file.settings["tokenizer.ggml.pre"] = (STRING, cut)
    content = read_beside(file.write(tmp_path / "m.gguf"))["tokenizer.json"].decode()
    assert Tokenizer.from_str(content).encode(text).tokens == tokens


@pytest.mark.parametrize("sample", ["", " ", "hello\n\n  12", "wörld 日本 \x00\x7f", "it's <e>"])
def test_any_text_survives_the_tokenizer(tokenizer, sample):
    assert tokenizer.decode(tokenizer.encode(sample).ids) == sample
    letters = byte_characters()
    spelt = "".join(tokenizer.encode(sample).tokens)
    assert spelt == "".join(letters[byte] for byte in sample.encode())


def test_transformers_loads_what_convert_writes(tmp_path):
    import transformers

    from gossamer.cli.main import main

    path = tiny_gguf().write(tmp_path / "m.gguf")
    assert main(["convert", str(path), str(tmp_path / "hf"), "--format", "dense", "-q"]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf", local_files_only=True
    )
    assert torch.equal(output(model.eval()), output(tiny_llama()))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf", local_files_only=True)
    assert [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id] == [1, 2, 2]
    assert tokenizer("hello")["input_ids"] == [tokenizer.vocab["hell"], tokenizer.vocab["o"]]


# Files that must be refused.


def changed(**settings):
    def apply(file):
        for key, value in settings.items():
            file.settings[key.replace("__", ".")] = value

    return apply


def tensor(number, **changes):
    def apply(file):
        file.tensors[number] = dataclasses.replace(file.tensors[number], **changes)

    return apply


def without(name):
    def apply(file):
        file.tensors = [tensor for tensor in file.tensors if tensor.name != name]

    return apply


def field(**changes):
    return lambda file: file.__dict__.update(changes)


def extra(name="blk.0.attn_q.bias", shape=(32,)):
    return lambda file: file.tensors.append(Tensor(name, shape, F32, b"\0" * 4 * shape[0]))


REFUSED = {
    "magic": (field(magic=b"GGML"), "is no gguf file"),
    "version": (field(version=1), "version 1 is not known"),
    "big-endian": (field(version=3 << 24), "is not known"),
    "many-tensors": (field(num_tensors=2**63), "announces"),
    "many-settings": (field(num_settings=2**62), "announces"),
    "architecture": (changed(general__architecture=(STRING, "mamba")), "'mamba' cannot be read"),
    "no-layers": (changed(llama__block_count=(UINT32, 0)), "block_count must be"),
    "many-layers": (changed(llama__block_count=(UINT32, 2**31 - 1)), "blocks announced"),
    "type-of-setting": (changed(llama__block_count=(STRING, "2")), "block_count must be"),
    "alignment": (changed(general__alignment=(UINT32, 33)), "power of two"),
    "alignment-zero": (changed(general__alignment=(UINT32, 0)), "power of two"),
    "heads": (changed(llama__attention__head_count_kv=(UINT32, 3)), "do not make a Llama"),
    "rope-scaling": (changed(llama__rope__scaling__type=(STRING, "su")), "rope scaling"),
    "experts": (changed(llama__expert_count=(UINT32, 8)), "expert_count"),
    "eps": (changed(llama__attention__layer_norm_rms_epsilon=(FLOAT32, float("nan"))), "positive"),
    "missing": (without("blk.1.ffn_up.weight"), "'blk.1.ffn_up.weight' is missing"),
    "no-embedding": (without("token_embd.weight"), "token_embd.weight"),
    "bias": (extra(), "has no place in a Llama"),
    "rope-factors": (extra("rope_factors_long.weight", (4,)), "have no place in a Llama"),
    "rope-freqs": (extra("rope_freqs.weight", (4,)), "are not those of Llama 3"),
    "twice": (extra("token_embd.weight", (32,)), "appears twice"),
    "shape": (tensor(1, shape=(16, 64)), "expected"),
    "dimensions": (tensor(1, shape=(1, 1, 1, 32, 32)), "1 to 4 dimensions"),
    "no-dimensions": (tensor(1, shape=()), "1 to 4 dimensions"),
    "huge": (tensor(1, shape=(2**40, 2**40)), "limit"),
    "overflow": (tensor(1, shape=(2**63, 2**63, 2)), "dimension must be"),
    "beyond": (tensor(1, shape=(2**20, 32)), "truncated|overlaps"),
    "offset": (tensor(1, offset=2**63), "truncated"),
    "overlap": (tensor(2, offset=0), "overlaps"),
    "tensor-type": (tensor(1, kind=9), "tensor type 9 cannot be read"),
    "blocks": (tensor(1, kind=Q8_0, shape=(32, 33)), "blocks of 32"),
    "name": (tensor(1, name="../x"), "looks like a path"),
    "empty-name": (tensor(1, name=""), "1 to 512 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_hostile_files_are_refused_before_memory_is_taken(tmp_path, case, monkeypatch):
    change, message = REFUSED[case]
    file = tiny_gguf()
    change(file)
    path = file.write(tmp_path / "m.gguf")
    monkeypatch.setattr("gossamer.io.gguf.file.check_memory", None)
    with pytest.raises(ArtifactError, match=message) as caught:
        load_gguf(path)
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", (STRING, "t5"), "tokenizer 't5'"),
        ("pre", (STRING, "no-such"), "pre-tokenizer 'no-such'"),
        ("tokens", (STRING, "x"), "no list of texts"),
        ("tokens", (ARRAY, [1, 2], INT32), "no list of texts"),
        ("tokens", (ARRAY, ["a", "a"], STRING), "appears twice"),
        ("token_type", (ARRAY, [1], INT32), "one entry per token"),
        ("merges", (ARRAY, ["h e l"], STRING), "two tokens"),
        ("merges", (ARRAY, ["h z"], STRING), "two tokens"),
        ("eos_token_id", (UINT32, 300), "there are 300 tokens"),
        ("bos_token_id", (INT32, -1), "there are 300 tokens"),
    ],
)
def test_tokenizers_that_are_refused(tmp_path, key, value, message):
    file = tiny_gguf()
    file.settings[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(ArtifactError, match=message):
        read_beside(file.write(tmp_path / "m.gguf"))


def test_a_tokenizer_in_the_folder_stands_in(tmp_path):
    file = tiny_gguf()
    file.settings["tokenizer.ggml.model"] = (STRING, "t5")
    path = file.write(tmp_path / "m.gguf")
    with pytest.raises(ArtifactError, match="in the folder of the file"):
        read_beside(path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert read_beside(path) == {"tokenizer.json": b"{}"}


def raw_setting(body):
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("key")
    return head + body + b"\0" * 64


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (struct.pack("<I", 77), "unknown type 77"),
        (struct.pack("<IQ", 8, 2**63), "announces"),
        (struct.pack("<IIQ", 9, 8, 2**22), "announces"),
        (struct.pack("<IIQ", 9, 9, 1), "unknown type 9"),
        (struct.pack("<IIQ", 9, 0, MAX_ITEMS + 1), "entries, more than"),
        (struct.pack("<IIQ", 9, 12, 1000), "announces"),
        (struct.pack("<IQ", 8, 2) + b"\xff\xff", "not UTF-8"),
    ],
)
def test_hostile_settings(tmp_path, body, message):
    (tmp_path / "m.gguf").write_bytes(raw_setting(body))
    with pytest.raises(ArtifactError, match=message):
        header_of(tmp_path / "m.gguf")


def test_settings_that_appear_twice(tmp_path):
    one = text("key") + struct.pack("<IB", 0, 1)
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + one + one)
    with pytest.raises(ArtifactError, match="appears twice"):
        header_of(tmp_path / "m.gguf")


def test_a_file_cut_anywhere_is_refused(tmp_path):
    head, data = tiny_gguf().header_and_data()
    whole = head + data
    path = tmp_path / "m.gguf"
    cuts = [*range(40), *range(40, len(head), 97), len(head), len(head) + 7, len(whole) - 1]
    for cut in cuts:
        path.write_bytes(whole[:cut])
        with pytest.raises(ArtifactError):
            load_gguf(path)


def test_damaged_headers_give_our_errors_only(tmp_path):
    head, _ = tiny_gguf().header_and_data()
    path, chance = tmp_path / "m.gguf", random.Random(0)  # noqa: S311
    refused = 0
    for _ in range(400):
        damaged = bytearray(head)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            read_all(path)
        except GossamerError:
            refused += 1
    assert refused == 400  # the data part is missing, so none may pass


def test_memory_limit_and_missing_package(tmp_path, monkeypatch):
    path = tiny_gguf().write(tmp_path / "m.gguf")
    with pytest.raises(ResourceError, match="max_bytes="):
        load_gguf(path, max_bytes=1000)
    with pytest.raises(InputError, match="pass no model="):
        load(path, model=torch.nn.Linear(1, 1))
    monkeypatch.setitem(sys.modules, "gguf", None)
    load_gguf(path)  # types that most files have are read without it
    file = tiny_gguf()
    tensor = file.tensors[0]
    weight = torch.frombuffer(bytearray(tensor.data), dtype=torch.float32)
    raw, _ = packed(BF16, weight.reshape(tensor.shape))
    file.tensors[0] = dataclasses.replace(tensor, kind=BF16, data=raw)
    with pytest.raises(InputError, match=r"gossamer\[hf\]"):
        load_gguf(file.write(path))


def test_directories_and_missing_files(tmp_path):
    (tmp_path / "d.gguf").mkdir()
    with pytest.raises(ArtifactError):
        load_gguf(tmp_path / "d.gguf")
    with pytest.raises(ArtifactError):
        load(tmp_path / "d.gguf")
    with pytest.raises(ArtifactError):
        load(tmp_path / "absent.gguf")
