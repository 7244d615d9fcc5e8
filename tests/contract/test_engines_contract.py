# SPDX-License-Identifier: Apache-2.0
"""Engines, which run a whole model in one native call, ask the list of kernels like all others."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.errors import DenseFallback, InputError, KernelMissing
from gossamer.formats import SparseMatrix
from gossamer.ops import Kernel, Problem, kernel_list, kernels_for
from gossamer.ops.conv import ConvSettings
from gossamer.ops.fallback import fallbacks
from gossamer.ops.linear import dense_int8, int8, int8_window
from gossamer.patterns import NM, Block, Unstructured
from gossamer.running.decoder import DecoderEngine
from gossamer.running.encoder import NativeEncoder, pack_encoder

transformers = pytest.importorskip("transformers")

# Kernels that stand last in the list where the CPU has their instructions.
WINDOW, DENSE = (
    [kernel.name for kernel in module.KERNELS if kernel.is_offered()]
    for module in (int8_window, dense_int8)
)


def bert(sparsity=0.7, pattern="unstructured"):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=48,
        num_attention_heads=3,
        intermediate_size=100,
        num_hidden_layers=2,
        vocab_size=50,
        max_position_embeddings=64,
    )
    model = transformers.BertModel(config).eval()
    gossamer.sparsify(model, sparsity=sparsity, pattern=pattern, targets=["encoder.*"])
    return model


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=1,
        vocab_size=50,
        max_position_embeddings=32,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    gossamer.sparsify(model, sparsity=0.5)
    return model


class Net(nn.Module):
    """Two convolutions and the mean over pixels."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return self.second(F.relu(self.first(x))).mean((2, 3))


def net():
    model = Net().eval()
    gossamer.sparsify(model, sparsity=0.7, targets=["*"])
    return model


def matrix(density=0.5, pattern=None, shape=(32, 64)):
    generator = torch.Generator().manual_seed(1)
    pattern = pattern or Unstructured()
    weight = torch.randn(shape, generator=generator)
    kept = torch.rand(shape, generator=generator) < density
    if not isinstance(pattern, Unstructured):
        kept = pattern.project(weight.abs(), density)
    return SparseMatrix.from_dense(weight, kept, pattern)


def names_for(op, **problem):
    return [kernel.name for kernel in kernels_for(op, Problem(**problem))]


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")


@pytest.fixture
def plug_in():
    """A kernel of somebody else, for both operations, whose weights fit into no native call."""
    gossamer.register.op("linear", "mine")(lambda matrix: lambda x, bias, activation: x)
    pack = kernel_list("conv").get("conv").pack
    kernel_list("conv").add("mine", Kernel("mine", pack, is_plug_in=True))
    yield "mine"
    for op in ("linear", "conv"):
        kernel_list(op).remove("mine")


@pytest.fixture
def take_from_engines(monkeypatch):
    """Lets kernels stay in the list, but pack for no engine."""

    def take(op, *names):
        kernels = kernel_list(op)
        for name in names:
            monkeypatch.setitem(kernels._items, name, replace(kernels.get(name), engines={}))

    return take


def test_rows_that_pack_for_an_encoder():
    half = matrix(0.5)
    assert names_for("linear", matrix=half, engine="encoder") == ["panel"]
    assert names_for("linear", matrix=half, engine="encoder", precision="bf16") == ["panel"]
    lossy = {"engine": "encoder", "precision": "int8"}
    assert names_for("linear", matrix=matrix(0.3), **lossy) == ["panel", "int8_panel", *WINDOW]
    assert names_for("linear", matrix=matrix(0.9), **lossy) == [
        "panel",
        "int8_panel",
        "int8_quad",
        *DENSE,
    ]
    # Of four neighbours more than two are kept.
    blocks = matrix(0.3, pattern=Block(4, 4))
    assert names_for("linear", matrix=blocks, **lossy) == [
        "panel",
        "int8_panel",
        "int8_quad",
        *WINDOW,
    ]


def test_rows_that_pack_for_a_decoder():
    def last(matrix, engine="decoder", precision="bf16"):
        return names_for("linear", matrix=matrix, engine=engine, precision=precision, tokens=1)[-1]

    assert last(matrix(0.5)) == "few/bitmask-bf16"
    assert last(matrix(0.1)) == "few/indexed-bf16"
    assert last(matrix(pattern=NM(2, 4))) == "few/nm-bf16"
    for weight in (matrix(0.1), matrix(pattern=NM(2, 4))):
        assert last(weight, "decoder_table") == "few/bitmask-bf16"  # rows are read


@pytest.mark.parametrize(
    ("settings", "image", "accepted"),
    [
        (ConvSettings(2, 4, (3, 3), padding=(1, 1)), (8, 8), True),
        (ConvSettings(2, 4, (3, 3), (2, 2), (1, 1)), (8, 8), True),
        (ConvSettings(2, 4, (3, 3)), (8, 8), False),
        (ConvSettings(2, 4, (3, 3), (3, 3), (1, 1)), (8, 8), False),
        (ConvSettings(2, 4, (3, 3), padding=(1, 1)), None, False),
    ],
    ids=str,
)
def test_rows_that_pack_for_a_network(settings, image, accepted):
    weight = {"matrix": matrix(shape=settings.matrix_shape), "geometry": settings, "image": image}
    for precision, names in (("fp32", ["conv"]), ("int8", ["conv", "conv_int8"])):
        found = names_for("conv", **weight, precision=precision, engine="conv_net")
        assert found == (names if accepted else [])


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_explain_says_what_runs_inside_an_encoder(plug_in, precision):
    kernel = {"fp32": "panel", "int8": ["int8_panel", *WINDOW][-1]}[precision]
    fast = gossamer.compile(bert(), tokens=(1, 128), precision=precision)
    rows = gossamer.explain(fast)
    whole = [row for row in rows if row.kind == "NativeEncoder"]
    assert [row.inside for row in whole] == ["", f"inside: {kernel}, not usable there: {plug_in}"]
    parts = [row for row in rows if row.name.startswith("encoder.layer")]
    assert len(parts) == 2 * 2 * 6
    for row in parts:
        assert row.inside == (f"inside encoder: {kernel}" if row.tokens == 128 else "")
        assert row.inside in row.reason
    assert f"inside encoder: {kernel}" in str(rows)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_explain_says_what_runs_inside_a_network(plug_in, precision):
    kernel = {"fp32": "conv", "int8": "conv_int8"}[precision]
    images = torch.randn(2, 3, 8, 8)
    rows = gossamer.explain(gossamer.compile(net(), example=images, precision=precision))
    assert [(row.name, row.inside) for row in rows] == [
        ("Net", f"inside: {kernel}, not usable there: {plug_in}"),
        ("first", f"inside Net: {kernel}"),
        ("second", f"inside Net: {kernel}"),
    ]


def test_explain_says_what_runs_inside_a_decoder(plug_in):
    engine = DecoderEngine(llama(), "fp32")
    rows = gossamer.explain(engine)
    assert [row.name for row in rows] == [
        "model.embed_tokens",
        "lm_head",
        "model.layers.0.self_attn",
        "model.layers.0.self_attn.o_proj",
        "model.layers.0.mlp",
        "model.layers.0.mlp.down_proj",
    ]
    for row in rows[2:]:
        assert row.kernel == "few/bitmask"
        assert row.reason == f"the fewest bytes for a token; not usable inside: {plug_in}"
    assert rows[0].inside == ""  # rows of a table are read: plug-ins are not asked


def test_a_plug_in_that_packs_for_the_encoder_runs_inside():
    built_in = kernel_list("linear").get("panel")
    packed = []

    def pack(problem):
        packed.append(problem)
        return built_in.engines["encoder"](problem)

    kernel = Kernel("mine", built_in.pack, is_plug_in=True, engines={"encoder": pack})
    model = bert()
    wanted = pack_encoder(model.encoder, "fp32")
    kernel_list("linear").add("mine", kernel)
    try:
        found = pack_encoder(model.encoder, "fp32")
    finally:
        kernel_list("linear").remove("mine")
    assert set(found.kernels.values()) == {"mine"}
    assert not found.not_usable
    assert len(packed) == 2 * 4
    assert {problem.engine for problem in packed} == {"encoder"}
    x = torch.randn(5, 48)
    assert torch.equal(found(x, [5]), wanted(x, [5]))


def test_without_a_row_the_encoder_says_which_kernel_is_missing(take_from_engines):
    take_from_engines("linear", "panel")
    model = bert()
    with pytest.raises(
        KernelMissing, match=r"layer\.0\.attention\.self\.query .*'encoder' at fp32"
    ):
        pack_encoder(model.encoder, "fp32")
    with gossamer.strict(), pytest.raises(DenseFallback, match=r"no linear kernel packs .*encoder"):
        gossamer.compile(model, tokens=(128,))
    fast = gossamer.compile(model, tokens=(128,))
    assert not isinstance(fast.encoder, NativeEncoder)
    assert any("Kernels that pack for it: int8_panel" in text for text in fallbacks())
    (row,) = [row for row in gossamer.explain(fast) if row.name == "encoder"]
    assert "no linear kernel packs this unstructured weight" in row.why
    ids = torch.arange(40)[None]
    torch.testing.assert_close(
        fast(ids).last_hidden_state, model(ids).last_hidden_state, rtol=1e-4, atol=1e-4
    )


def test_without_a_row_the_network_says_which_kernel_is_missing(take_from_engines):
    take_from_engines("conv", "conv", "conv_int8")
    model, images = net(), torch.randn(2, 3, 8, 8)
    with gossamer.strict(), pytest.raises(DenseFallback, match=r"no conv kernel packs .*conv_net"):
        gossamer.compile(model, example=images)
    fast = gossamer.compile(model, example=images)
    assert "no conv kernel packs" in gossamer.explain(fast)[0].why
    torch.testing.assert_close(fast(images), model(images), rtol=1e-4, atol=1e-4)


def test_without_an_int8_row_the_network_stays_exact(take_from_engines):
    take_from_engines("conv", "conv_int8")
    model, images = net(), torch.randn(2, 3, 8, 8)
    rows = gossamer.explain(gossamer.compile(model, example=images, precision="int8"))
    assert (rows[0].kernel, rows[0].inside) == ("conv_net", "inside: conv")


def test_without_a_row_the_decoder_says_so(take_from_engines):
    names = [kernel.name for kernel in kernel_list("linear") if kernel.precision == "bf16"]
    take_from_engines("linear", *names)
    with pytest.raises(KernelMissing, match=r"no linear kernel packs .* in bf16"):
        DecoderEngine(llama(), "bf16")


def test_a_weight_that_int8_cannot_take_stays_exact_inside_the_encoder(monkeypatch):
    """48 columns fit the sums, 100 of the second feed-forward layer do not."""
    monkeypatch.setattr(int8, "MAX_COLUMNS", 64)
    packed = pack_encoder(bert().encoder, "int8")
    assert packed.precision == "int8"
    assert packed.kernels["layer.0.intermediate.dense"] == ["int8_panel", *WINDOW][-1]
    assert packed.kernels["layer.1.output.dense"] == "panel"


def test_all_int8_layouts_give_the_same_bits(take_from_engines):
    """Sums are exact integers."""
    model, x, found = bert(0.75, "block:4x4"), torch.randn(70, 48), []
    for name in (*WINDOW, "int8_quad", "int8_panel"):
        packed = pack_encoder(model.encoder, "int8")
        assert packed.kernels["layer.0.attention.self.query"] == name
        found.append(packed(x, [70]))
        take_from_engines("linear", name)
    assert all(torch.equal(y, found[0]) for y in found)


def test_engines_refuse_unknown_precisions():
    with pytest.raises(InputError, match="precision must be one of"):
        pack_encoder(bert().encoder, "int3")
