# SPDX-License-Identifier: Apache-2.0
"""What is saved comes back: same classes, same bits, same bytes on the next save."""

import copy
import json
from pathlib import Path

import pytest
import torch
from artifact_tools import (
    FORMAT_CASES,
    PATTERNS,
    assert_same_model,
    contents,
    force_format,
    generator,
    mask_for,
    random_linear,
    same_bits,
    sparse_linear,
    sparsify,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

import gossamer
from gossamer.errors import ArtifactError, InputError
from gossamer.io import load, save
from gossamer.io.artifact import open_artifact
from gossamer.nn.layers import Linear, MaskedConv2d, MaskedLinear, MaskedOutProj
from gossamer.patterns import NM, Unstructured
from gossamer.zoo import MLP, TinyEncoder

DTYPES = (torch.float32, torch.bfloat16)
HOLDERS = ("masked", "compact")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("format_name", FORMAT_CASES)
def test_every_format_holder_and_dtype_comes_back(
    tmp_path, monkeypatch, format_name, holder, dtype
):
    force_format(monkeypatch, format_name)
    model = nn.Sequential(sparse_linear(format_name, holder, dtype)).eval()
    save(model, tmp_path / "a")
    with open_artifact(tmp_path / "a") as artifact:
        entry = artifact.manifest.tensors["0.weight"]
    assert (entry.format, entry.holder, entry.kind) == (format_name, holder, "sparse")
    assert entry.mask.nnz == model[0].nnz
    assert entry.mask.sha256 == model[0].mask_digest()
    again = load(tmp_path / "a")
    assert_same_model(model, again)
    assert again[0].pattern == model[0].pattern
    assert not again.training


@pytest.mark.parametrize("format_name", FORMAT_CASES)
def test_save_load_save_writes_the_same_bytes(tmp_path, monkeypatch, format_name):
    force_format(monkeypatch, format_name)
    model = nn.Sequential(sparse_linear(format_name, "masked"), nn.ReLU())
    save(model, tmp_path / "a", report={"b": 1, "a": [1.5, None]}, recipe="stages: []\n")
    save(
        load(tmp_path / "a"),
        tmp_path / "b",
        report={"a": [1.5, None], "b": 1},
        recipe="stages: []\n",
    )
    first, second = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert first.keys() == second.keys()
    for name in first.keys() - {"card.md"}:
        assert first[name] == second[name], name


@pytest.mark.parametrize("format_name", ["bitmask", "csr", "nm", "vnm", "block"])
def test_the_smallest_format_is_chosen(tmp_path, format_name):
    save(nn.Sequential(sparse_linear(format_name, "masked")), tmp_path / "a")
    with open_artifact(tmp_path / "a") as artifact:
        assert artifact.manifest.tensors["0.weight"].format == format_name


def test_packed_is_smaller_and_close_to_the_formula(tmp_path):
    model = nn.Sequential(random_linear((512, 512), bias=False))
    dense_bytes = 512 * 512 * 4
    sparsify(model, "compact", density=0.1)
    save(model, tmp_path / "a")
    size = sum(len(raw) for raw in contents(tmp_path / "a").values())
    formula = 0.1 * dense_bytes + 512 * 512 / 8
    assert formula < size < formula + 4096


@pytest.mark.parametrize("holder", HOLDERS)
def test_dense_artifact_is_ordinary_safetensors_with_exact_zeros(tmp_path, holder):
    model = sparsify(MLP((16, 32, 4)), holder)
    save(model, tmp_path / "a", format="dense")
    plain = load_file(tmp_path / "a" / "model.safetensors")
    reference = MLP((16, 32, 4))
    assert sorted(plain) == sorted(reference.state_dict())
    layer = model.layers[0]
    mask, weight = layer.mask(), plain["layers.0.weight"]
    assert torch.equal(weight != 0, mask)
    assert not torch.signbit(weight[~mask]).any()
    reference.load_state_dict(plain)
    x = torch.randn(3, 16, generator=generator())
    torch.testing.assert_close(reference(x), model(x), rtol=1e-6, atol=1e-6)
    again = load(tmp_path / "a", detect_masks=False)
    assert type(again.layers[0]) is nn.Linear
    assert same_bits(again.layers[0].weight, weight)
    masked = load(tmp_path / "a")
    assert type(masked.layers[0]) is MaskedLinear
    assert torch.equal(masked.layers[0].mask(), mask)


@pytest.mark.parametrize("holder", HOLDERS)
def test_special_values_keep_their_bits_and_pruned_ones_do_not_leak(tmp_path, holder):
    linear = random_linear((4, 8))
    mask = torch.ones(4, 8, dtype=torch.bool)
    mask[:, ::2] = False
    special = torch.tensor([float("nan"), float("inf"), -0.0, 0.0])
    with torch.no_grad():
        linear.weight[0, 1::2] = special
        # A NaN with a payload, as damaged or signalling ones have.
        linear.weight[1, 1] = torch.tensor(0x7FC12345, dtype=torch.int32).view(torch.float32)
    build = MaskedLinear if holder == "masked" else Linear
    model = nn.Sequential(build.from_dense(linear, mask, Unstructured()))
    if holder == "masked":
        # What an optimizer may leave under the mask must not reach the file.
        model[0].weight.data[~mask] = float("nan")
    save(model, tmp_path / "a")
    weight = load(tmp_path / "a")[0].to_dense().weight
    assert same_bits(weight[0, 1::2], special)
    assert weight[1, 1].view(torch.int32).item() == 0x7FC12345
    assert torch.equal(weight[~mask], torch.zeros(16))


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (1, 1), (3, 1), (1, 9)])
@pytest.mark.parametrize("holder", HOLDERS)
def test_edge_sizes(tmp_path, shape, holder):
    linear = nn.Linear(1, 1)
    linear.in_features, linear.out_features = shape[1], shape[0]
    linear.weight = nn.Parameter(torch.randn(shape, generator=generator()))
    linear.bias = nn.Parameter(torch.randn(shape[0], generator=generator()))
    mask = torch.rand(shape, generator=generator(1)) < 0.5
    build = MaskedLinear if holder == "masked" else Linear
    model = nn.Sequential(build.from_dense(linear, mask, Unstructured()))
    save(model, tmp_path / "a")
    assert_same_model(model, load(tmp_path / "a"))


@pytest.mark.parametrize("keep", [True, False])
def test_everything_and_nothing_kept(tmp_path, keep):
    mask = torch.full((5, 9), keep)
    model = nn.Sequential(MaskedLinear.from_dense(random_linear((5, 9)), mask, Unstructured()))
    save(model, tmp_path / "a")
    assert_same_model(model, load(tmp_path / "a"))


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
    pattern=st.sampled_from(PATTERNS),
    density=st.floats(0.01, 1.0),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    compact=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_mask_comes_back(
    tmp_path_factory, rows, columns, pattern, density, dtype, compact, seed
):
    shape = pattern.padded_shape((rows * 8 - 3, columns * 12 - 5))
    linear = random_linear(shape, dtype, seed=seed)
    mask = mask_for(linear, pattern, density if pattern.fixed_density is None else None)
    build = Linear if compact else MaskedLinear
    model = nn.Sequential(build.from_dense(linear, mask, pattern))
    folder = tmp_path_factory.mktemp("any") / "a"
    save(model, folder)
    assert_same_model(model, load(folder))


def test_mode_of_compact_layers_comes_back(tmp_path):
    linear = random_linear((8, 8))
    mask = mask_for(linear, NM(2, 4), None)
    model = nn.Sequential(Linear.from_dense(linear, mask, NM(2, 4), mode="resident"))
    save(model, tmp_path / "a")
    assert load(tmp_path / "a")[0].mode == "resident"


def test_masked_convolution_comes_back(tmp_path):
    conv = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2)
    mask = torch.rand(8, 18, generator=generator()) < 0.3
    model = nn.Sequential(MaskedConv2d.from_dense(conv, mask, Unstructured()), nn.BatchNorm2d(8))
    model(torch.randn(2, 4, 8, 8, generator=generator()))
    model.eval()
    save(model, tmp_path / "a")
    again = load(tmp_path / "a")
    assert_same_model(model, again)
    x = torch.randn(2, 4, 9, 9, generator=generator())
    assert torch.equal(model(x), again(x))


def test_masked_attention_projection_comes_back(tmp_path):
    model = nn.MultiheadAttention(16, 2, batch_first=True)
    mask = torch.rand(16, 16, generator=generator()) < 0.5
    model.out_proj = MaskedOutProj.from_dense(model.out_proj, mask, Unstructured())
    save(model.eval(), tmp_path / "a")
    again = load(tmp_path / "a")
    assert type(again.out_proj) is MaskedOutProj
    x = torch.randn(1, 3, 16, generator=generator())
    assert torch.equal(model(x, x, x)[0], again(x, x, x)[0])


def test_encoder_with_sparse_layers_gives_the_same_output_in_eval(tmp_path):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = sparsify(nn.TransformerEncoder(layer, 2), "compact").eval()
    save(model, tmp_path / "a")
    again = load(tmp_path / "a")
    x = torch.randn(2, 5, 16, generator=generator())
    expected = copy.deepcopy(model)
    from gossamer.nn.surgery import disable_fast_paths

    disable_fast_paths(expected)
    torch.testing.assert_close(again(x), expected(x))


def test_a_model_that_is_one_layer(tmp_path):
    for holder in HOLDERS:
        layer = sparse_linear("bitmask", holder)
        save(layer, tmp_path / holder)
        assert_same_model(layer, load(tmp_path / holder))


def test_model_without_tensors(tmp_path):
    save(nn.Sequential(nn.ReLU(), nn.Identity()), tmp_path / "a")
    assert isinstance(load(tmp_path / "a")[0], nn.ReLU)


class Packed(nn.Module):
    """Stands for an inference layer: no parameters of its own, but a way back."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.hidden = [layer]

    def to_compact(self) -> Linear:
        return self.hidden[0]


def test_packed_layers_are_saved_as_what_they_were_made_of(tmp_path):
    compact = sparse_linear("nm", "compact")
    packed = Packed(compact)
    model = nn.Sequential(nn.Sequential(packed), nn.ReLU(), packed)
    save(model, tmp_path / "a")
    again = load(tmp_path / "a")
    assert_same_model(again[0][0], compact)
    assert again[2] is again[0][0]
    assert model[0][0] is packed


def test_compiled_models_are_saved_as_compact_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    model = sparsify(MLP((64, 512, 512, 4)), "compact", density=0.1).eval()
    fast = gossamer.compile(model, tokens=(128,))
    packed = [type(layer).__name__ for layer in fast.layers]
    assert "PackedLinear" in packed
    save(fast, tmp_path / "a")
    assert_same_model(model, load(tmp_path / "a"))
    assert [type(layer).__name__ for layer in fast.layers] == packed


def test_wrappers_are_unwrapped(tmp_path):
    model = sparsify(MLP((8, 8, 2)), "masked")
    save(nn.DataParallel(model), tmp_path / "a")
    save(torch.compile(model, backend="eager"), tmp_path / "b")
    assert contents(tmp_path / "a") == {
        **contents(tmp_path / "b"),
        "card.md": contents(tmp_path / "a")["card.md"],
    }
    assert_same_model(load(tmp_path / "a"), model)


def test_zoo_models_are_rebuilt(tmp_path):
    for number, model in enumerate((MLP((8, 16, 2), "gelu"), TinyEncoder(20, 3, width=16))):
        sparsify(model, "compact")
        save(model, tmp_path / str(number))
        again = load(tmp_path / str(number))
        assert_same_model(model, again)
        assert again.zoo_args() == model.zoo_args()


def test_integer_and_unusual_dtypes_come_back(tmp_path):
    model = nn.Sequential(nn.BatchNorm1d(3))
    model[0].num_batches_tracked.fill_(7)
    model.half()
    save(model, tmp_path / "a")
    again = load(tmp_path / "a")
    assert_same_model(model, again)
    assert again[0].weight.dtype is torch.float16


def test_returned_path_report_recipe_and_card(tmp_path):
    class Report:
        def to_dict(self):
            return {"sparsity": 0.5}

    path = save(
        MLP((4, 2)), str(tmp_path / "deep" / "a"), report=Report(), recipe="x", card="hello"
    )
    assert path == Path(tmp_path / "deep" / "a")
    assert json.loads((path / "report.json").read_text()) == {"sparsity": 0.5}
    assert (path / "card.md").read_text() == "hello"
    with open_artifact(path) as artifact:
        assert artifact.manifest.recipe == "x"
        assert "report.json" in artifact.manifest.files
        assert "card.md" not in artifact.manifest.files
    (path / "card.md").write_text("people may edit this")
    (path / "tokenizer.json").write_text("and other tools may put this here")
    load(path)
    (path / "card.md").unlink()
    load(path)


def test_large_models_are_sharded(tmp_path, monkeypatch):
    monkeypatch.setattr("gossamer.io.artifact.writer.SHARD_BYTES", 1000)
    model = sparsify(MLP((16, 32, 32, 32, 4)), "masked", density=0.2)
    for kind in ("packed", "dense"):
        save(model, tmp_path / kind, format=kind)
        files = sorted(p.name for p in (tmp_path / kind).glob("*.safetensors"))
        assert len(files) > 2
        assert files[0].endswith(f"00001-of-{len(files):05}.safetensors")
    assert_same_model(load(tmp_path / "packed"), model)
    index = json.loads((tmp_path / "dense" / "model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        assert name in load_file(tmp_path / "dense" / file)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m.register_buffer("a::b", torch.zeros(1)), "reserved"),
        (lambda m: m.register_buffer("s", torch.zeros(2, 2).to_sparse()), "layout"),
        (
            lambda m: m.register_parameter("p", nn.Parameter(torch.empty(2, device="meta"))),
            "no values",
        ),
        (lambda m: m.register_buffer("c", torch.zeros(2, dtype=torch.complex128)), "complex128"),
        (lambda m: m.add_module("lazy", nn.LazyLinear(3)), "no values"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(tmp_path, change, text):
    model = nn.Sequential(nn.Linear(2, 2))
    change(model)
    with pytest.raises(InputError, match=text):
        save(model, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_names_in_any_script_come_back(tmp_path):
    names = ["gr\u00f6\u00dfe", "\u5c42", "\U0001f578", "a b", "it's"]
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in names})
    save(model, tmp_path / "a")
    assert_same_model(model, load(tmp_path / "a"))


@pytest.mark.parametrize("name", ["a\nb", "x" * 600, "\ud800"])
def test_names_that_cannot_be_stored_are_refused(tmp_path, name):
    shared = nn.ReLU()
    for model in (
        nn.ModuleDict({name: nn.Linear(2, 2)}),
        nn.ModuleDict({"a": shared, name: shared}),
    ):
        with pytest.raises(InputError, match="name"):
            save(model, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_default_device_or_dtype_of_the_user_changes_nothing(tmp_path):
    model = sparsify(MLP((8, 8, 2)), "masked")
    save(model, tmp_path / "a")
    with torch.device("meta"):
        again = load(tmp_path / "a")
    assert_same_model(model, again)


def test_more_modules_than_a_reader_builds(tmp_path):
    model = nn.Sequential(*(nn.ReLU() for _ in range(10_001)))
    save(model, tmp_path / "a")
    with pytest.raises(ArtifactError, match="model="):
        load(tmp_path / "a")
    load(tmp_path / "a", model=model)


def test_extra_state_is_refused(tmp_path):
    class Stateful(nn.Linear):
        def get_extra_state(self):
            return {"x": 1}

    with pytest.raises(InputError, match="extra state"):
        save(Stateful(2, 2), tmp_path / "a")


def test_bad_arguments(tmp_path):
    with pytest.raises(InputError, match=r"'packed'.*'dense'"):
        save(MLP((2, 2)), tmp_path / "a", format="zip")
    with pytest.raises(InputError, match="torch module"):
        save({"a": torch.zeros(1)}, tmp_path / "a")
    with pytest.raises(InputError, match="report"):
        save(MLP((2, 2)), tmp_path / "a", report={"loss": float("nan")})
    with pytest.raises(InputError, match="recipe"):
        save(MLP((2, 2)), tmp_path / "a", recipe="x" * (2**20 + 1))
    with pytest.raises(ArtifactError, match="no such file"):
        load(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []
