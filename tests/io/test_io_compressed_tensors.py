# SPDX-License-Identifier: Apache-2.0
"""sparse-bitmask of compressed-tensors 0.14: the same weights in and out, hostile files refused."""

import json

import numpy as np
import pytest
import torch
from artifact_tools import same_bits, sparsify
from gguf_tools import tiny_llama
from safetensors.torch import load_file, save_file

from gossamer.errors import ArtifactError, InputError, ResourceError
from gossamer.io import load, save
from gossamer.io.artifact import save_compressed_tensors
from gossamer.io.pruners.compressed_tensors import expand_bitmasks
from gossamer.nn import Linear, MaskedLinear

pytest.importorskip("transformers")

CONFIG = {"quantization_config": {"sparsity_config": {"format": "sparse-bitmask"}}}
CONFIG_24 = {"quantization_config": {"sparsity_config": {"format": "sparse-24-bitmask"}}}


def arrays_of(dense, prefix="layer", two_four=False):
    """What the documented layout says, with numpy only."""
    mask = dense != 0
    counts = mask.sum(axis=1)
    arrays = {
        f"{prefix}.shape": torch.tensor(dense.shape),
        f"{prefix}.compressed": torch.from_numpy(dense[mask]),
        f"{prefix}.bitmask": torch.from_numpy(np.packbits(mask, axis=-1, bitorder="little")),
        f"{prefix}.row_offsets": torch.from_numpy(np.cumsum(counts) - counts),
    }
    if two_four:
        del arrays[f"{prefix}.row_offsets"]
        arrays[f"{prefix}.shape"] = arrays[f"{prefix}.shape"].reshape(2, 1)
        arrays[f"{prefix}.compressed"] = arrays[f"{prefix}.compressed"].reshape(len(dense), -1)
    return arrays


def random_dense(rows, columns, density=0.4):
    chance = np.random.default_rng(rows * 100 + columns)
    dense = chance.standard_normal((rows, columns)).astype(np.float32)
    return dense * (chance.random((rows, columns)) < density)


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (3, 7), (4, 8), (5, 9), (16, 33), (0, 8), (3, 0)]
)
@pytest.mark.parametrize("prefix", ["a.layer", "a.layer.weight"])
def test_bitmasks_expand(rows, columns, prefix):
    dense = random_dense(rows, columns)
    tensors = {**arrays_of(dense, prefix), "a.bias": torch.ones(2)}
    masks = expand_bitmasks(tensors, CONFIG, "file")
    assert sorted(tensors) == ["a.bias", "a.layer.weight"]
    assert torch.equal(tensors["a.layer.weight"], torch.from_numpy(dense))
    assert torch.equal(masks["a.layer.weight"], torch.from_numpy(dense != 0))


def test_golden_bytes():
    tensors = {
        "m.shape": torch.tensor([2, 9]),
        "m.compressed": torch.tensor([1.0, -2.0, 3.0]),
        "m.bitmask": torch.tensor([[0b00000010, 1], [0b10000000, 0]], dtype=torch.uint8),
        "m.row_offsets": torch.tensor([0, 2]),
    }
    expand_bitmasks(tensors, CONFIG, "file")
    expected = torch.zeros(2, 9)
    expected[0, 1], expected[0, 8], expected[1, 7] = 1.0, -2.0, 3.0
    assert torch.equal(tensors["m.weight"], expected)


def test_two_of_four_expands_and_keeps_zeros():
    dense = np.zeros((3, 8), dtype=np.float32)
    dense[:, [0, 3, 5, 6]] = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    tensors = arrays_of(dense, two_four=True)
    tensors["layer.compressed"][0, 0] = 0.0
    masks = expand_bitmasks(tensors, CONFIG_24, "file")
    assert torch.equal(masks["layer.weight"], torch.from_numpy(dense != 0))
    assert tensors["layer.weight"][0, 0] == 0
    assert torch.equal(tensors["layer.weight"][1:], torch.from_numpy(dense[1:]))


def test_ordinary_checkpoints_are_left_alone():
    tensors = {"m.bitmask": torch.zeros(1), "m.weight": torch.zeros(1)}
    for config in ({}, {"quantization_config": None}, {"quantization_config": {"x": 1}}):
        assert expand_bitmasks(tensors, config, "file") == {}
    assert len(tensors) == 2


@pytest.fixture
def pruned():
    model = sparsify(tiny_llama(tie_word_embeddings=False), "masked", density=0.25)
    layer = model.model.layers[0].mlp.up_proj
    with torch.no_grad():  # a kept zero and a negative zero are weights like others
        first, second = layer.mask().nonzero()[:2].tolist()
        layer.weight_parameter()[tuple(first)] = 0.0
        layer.weight_parameter()[tuple(second)] = -0.0
    return model


def output(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(12).unsqueeze(0)).logits


@pytest.mark.parametrize("holder", ["masked", "compact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_comes_back_masked(tmp_path, holder, dtype):
    model = sparsify(tiny_llama(tie_word_embeddings=False).to(dtype), holder, density=0.25)
    save_compressed_tensors(model, tmp_path / "ct", beside={"tokenizer.json": b"{}"})
    again = load(tmp_path / "ct")
    assert (tmp_path / "ct" / "tokenizer.json").read_bytes() == b"{}"
    kind = MaskedLinear if holder == "masked" else Linear
    layers = {name: layer for name, layer in model.named_modules() if type(layer) is kind}
    assert len(layers) == 15
    for name, layer in layers.items():
        found = again.get_submodule(name)
        assert isinstance(found, MaskedLinear)
        assert torch.equal(found.mask(), layer.mask())
        assert same_bits(found.to_dense().weight, layer.to_dense().weight)
    if holder == "masked" and dtype is torch.float32:
        assert torch.equal(output(again), output(model))


def test_bits_and_kept_zeros_survive(tmp_path, pruned):
    save_compressed_tensors(pruned, tmp_path / "ct")
    again = load(tmp_path / "ct")
    state = again.state_dict()
    assert all(same_bits(tensor, state[name]) for name, tensor in pruned.state_dict().items())


def test_what_is_written_is_the_documented_layout(tmp_path, pruned):
    save_compressed_tensors(pruned, tmp_path / "ct")
    config = json.loads((tmp_path / "ct" / "config.json").read_text())
    settings = config["quantization_config"]
    assert settings["quant_method"] == "compressed-tensors"
    sparsity = settings["sparsity_config"]
    assert sparsity["format"] == "sparse-bitmask"
    assert sparsity["global_sparsity"] == pytest.approx(0.75, abs=1e-3)
    assert sparsity["sparsity_structure"] == "unstructured"
    stored = load_file(tmp_path / "ct" / "model.safetensors")
    layer = pruned.model.layers[1].mlp.down_proj
    name = "model.layers.1.mlp.down_proj"
    assert name in sparsity["targets"]
    for key, array in arrays_of(layer.masked_weight().detach().numpy(), name).items():
        assert torch.equal(stored[key], array), key
        assert stored[key].dtype is array.dtype
    assert f"{name}.weight" not in stored
    assert torch.equal(stored["model.norm.weight"], pruned.model.norm.weight)


def test_two_of_four_is_named(tmp_path):
    import gossamer

    model = tiny_llama()
    gossamer.sparsify(model, pattern="2:4")
    save_compressed_tensors(model, tmp_path / "ct")
    again = load(tmp_path / "ct")
    assert str(again.model.layers[0].self_attn.q_proj.pattern) == "2:4"
    settings = json.loads((tmp_path / "ct" / "config.json").read_text())["quantization_config"]
    assert settings["sparsity_config"]["sparsity_structure"] == "2:4"


def test_models_that_cannot_be_written(tmp_path, pruned):
    with pytest.raises(InputError, match="transformers model"):
        save_compressed_tensors(torch.nn.Linear(2, 2), tmp_path / "ct")
    with pytest.raises(InputError, match="nothing to compress"):
        save_compressed_tensors(tiny_llama(), tmp_path / "ct")
    with pytest.raises(InputError, match=r"lm_head\.weight: shares its weight"):
        save_compressed_tensors(sparsify(tiny_llama(), "masked"), tmp_path / "ct")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    with pytest.raises(ArtifactError, match="left alone"):
        save_compressed_tensors(pruned, tmp_path / "mine")
    assert not (tmp_path / "ct").exists()
    save(pruned, tmp_path / "ct")
    save_compressed_tensors(pruned, tmp_path / "ct")
    assert not (tmp_path / "ct" / "manifest.json").exists()


def put(key, change):
    def apply(tensors):
        tensors[f"layer.{key}"] = change(tensors[f"layer.{key}"])

    return apply


def set_bit(row, byte, value):
    def change(bits):
        bits = bits.clone()
        bits[row, byte] ^= value
        return bits

    return put("bitmask", change)


HOSTILE = {
    "shape-float": (put("shape", lambda t: t.float()), "two integers"),
    "shape-3d": (put("shape", lambda t: torch.tensor([5, 9, 1])), "only matrices"),
    "shape-huge": (put("shape", lambda t: torch.tensor([5, 2**62])), "bitmask of a"),
    "shape-negative": (put("shape", lambda t: torch.tensor([5, -7])), "bitmask of a|out of bounds"),
    "shape-wide": (put("shape", lambda t: torch.tensor([5, 17])), "bitmask of a"),
    "bits-dtype": (put("bitmask", lambda t: t.to(torch.int8)), "must be uint8"),
    "bits-shape": (put("bitmask", lambda t: t[:, :1].clone()), "must be uint8"),
    "padding": (set_bit(0, 1, 0b10), "padding bits"),
    "one-more": (set_bit(2, 0, 0b1), "values"),
    "too-few-values": (put("compressed", lambda t: t[:-1].clone()), "values"),
    "values-int": (put("compressed", lambda t: t.int()), "must be float"),
    "values-2d": (put("compressed", lambda t: t.unsqueeze(0)), "must have shape"),
    "offsets-order": (put("row_offsets", lambda t: t.flip(0)), "row_offsets"),
    "offsets-negative": (put("row_offsets", lambda t: t - 1), "row_offsets"),
    "offsets-short": (put("row_offsets", lambda t: t[:-1].clone()), "row_offsets"),
    "offsets-dtype": (put("row_offsets", lambda t: t.int()), "row_offsets"),
    "no-offsets": (lambda t: t.pop("layer.row_offsets"), "has no row_offsets"),
    "no-shape": (lambda t: t.pop("layer.shape"), "has no shape"),
    "no-layer": (lambda t: t.clear(), "no tensor is compressed"),
    "twice": (lambda t: t.update({"layer.weight": torch.zeros(1)}), "dense and compressed"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_arrays_are_refused(case):
    change, message = HOSTILE[case]
    dense = random_dense(5, 9)
    dense[2, 0] = 0
    tensors = arrays_of(dense)
    change(tensors)
    with pytest.raises(ArtifactError, match=message) as caught:
        expand_bitmasks(tensors, CONFIG, "file")
    assert len(str(caught.value)) < 1000


def test_two_of_four_must_be_two_of_four():
    dense = np.zeros((2, 8), dtype=np.float32)
    dense[:, :4] = 1.0
    with pytest.raises(ArtifactError):
        expand_bitmasks(arrays_of(dense, two_four=True), CONFIG_24, "file")
    narrow = random_dense(2, 6, density=1.1)
    with pytest.raises(ArtifactError, match="2:4 values"):
        expand_bitmasks(arrays_of(narrow, two_four=True), CONFIG_24, "file")


def test_an_empty_bitmask_cannot_promise_rows_without_end():
    tensors = arrays_of(np.zeros((0, 8), dtype=np.float32))
    tensors["layer.shape"] = torch.tensor([2**40, 0])
    with pytest.raises(ArtifactError):
        expand_bitmasks(tensors, CONFIG, "file")


def test_memory_is_checked_before_expanding():
    with pytest.raises(ResourceError):
        expand_bitmasks(arrays_of(random_dense(64, 64)), CONFIG, "file", max_bytes=1000)


@pytest.mark.parametrize("name", ["marlin-24", 3, None, "os.system", ["sparse-bitmask"]])
def test_formats_come_from_a_closed_table(name):
    config = {"quantization_config": {"sparsity_config": {"format": name, "x": 1}}}
    with pytest.raises(ArtifactError, match="cannot be read"):
        expand_bitmasks({}, config, "file")


def test_quantised_on_top_is_refused(tmp_path, pruned):
    save_compressed_tensors(pruned, tmp_path / "ct")
    path = tmp_path / "ct" / "config.json"
    content = json.loads(path.read_text())
    content["quantization_config"]["config_groups"] = {"group_0": {}}
    path.write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match="quantised on top"):
        load(tmp_path / "ct")


def test_a_mask_without_a_layer_is_refused(tmp_path, pruned):
    save_compressed_tensors(pruned, tmp_path / "ct")
    path = tmp_path / "ct" / "model.safetensors"
    tensors = load_file(path)
    tensors.update(arrays_of(random_dense(4, 4), "model.layers.9.mlp.up_proj"))
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(ArtifactError, match=r"layers\.9"):
        load(tmp_path / "ct")


@pytest.mark.slow
def test_the_package_itself_reads_and_writes_the_same(tmp_path, pruned):
    package = pytest.importorskip("compressed_tensors")
    if not package.__version__.startswith("0.14"):
        pytest.skip("only 0.14 and earlier have the sparse formats")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.config import SparsityCompressionConfig

    save_compressed_tensors(pruned, tmp_path / "ct")
    settings = json.loads((tmp_path / "ct" / "config.json").read_text())["quantization_config"]
    sparsity = settings["sparsity_config"]
    SparsityCompressionConfig.load_from_registry(sparsity["format"], **sparsity)
    compressor = BaseCompressor.load_from_registry("sparse-bitmask", config=None)
    dense = dict(compressor.decompress(str(tmp_path / "ct")))
    save(pruned, tmp_path / "dense", format="dense")
    expected = load_file(tmp_path / "dense" / "model.safetensors")
    assert {name: t.shape for name, t in dense.items()} == {n: t.shape for n, t in expected.items()}
    assert all(torch.equal(dense[name], expected[name]) for name in expected)

    for name, config in (("sparse-bitmask", CONFIG), ("sparse-24-bitmask", CONFIG_24)):
        weight = random_dense(8, 32, density=0.9)
        weight.reshape(-1, 4)[:, 1:3] = 0
        weight[weight.reshape(8, 32) == 0] = 0
        weight.reshape(-1, 4)[:, [0, 3]] += 3
        settings = SparsityCompressionConfig.load_from_registry(
            name, format=name, sparsity_structure="2:4"
        )
        other = BaseCompressor.load_from_registry(name, config=settings)
        tensors = dict(other.compress({"m.weight": torch.from_numpy(weight)}))
        masks = expand_bitmasks(tensors, config, "file")
        assert torch.equal(tensors["m.weight"], torch.from_numpy(weight)), name
        assert torch.equal(masks["m.weight"], torch.from_numpy(weight != 0)), name
