# SPDX-License-Identifier: Apache-2.0
"""Encoders in one native call: what the stock layers give, whatever the lengths."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    RobertaConfig,
    RobertaModel,
)

import gossamer
from gossamer.errors import InputError, KernelError, TargetError
from gossamer.ops.engines.encoder import PackedEncoder
from gossamer.ops.kernels import available_kernels
from gossamer.running.encoder import NativeEncoder, find_encoders, pack_encoder, read_layers
from gossamer.running.encoder.short_forward import short_forward

SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
BERT = {**SIZES, "intermediate_size": 40, "max_position_embeddings": 200}


def bert(sparsity=0.6, seed=0, **options):
    torch.manual_seed(seed)
    model = BertModel(BertConfig(**{**BERT, **options}), add_pooling_layer=False).eval()
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    if sparsity:
        gossamer.sparsify(model, sparsity=sparsity)
    return model


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


def stock(model, x_ND, lengths):
    """Sequence by sequence through the stock layers in float64."""
    encoder = copy.deepcopy(model).double().encoder
    done, outputs = 0, []
    with torch.inference_mode():
        for length in lengths:
            part = x_ND[done : done + length].double()[None]
            outputs.append(encoder(part, None).last_hidden_state[0])
            done += length
    return torch.cat(outputs)


@pytest.mark.parametrize("lengths", [[1], [2, 16, 17], [63, 1, 65], [130]])
def test_equals_the_stock_layers(kernels, lengths):
    model = bert()
    x = torch.randn(sum(lengths), 24)
    packed = pack_encoder(model.encoder, "fp32")
    torch.testing.assert_close(
        packed(x, lengths).double(), stock(model, x, lengths), rtol=1e-4, atol=1e-5
    )


@settings(deadline=None, max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    sparsity=st.sampled_from([0.0, 0.5, 0.97]),
    seed=st.integers(0, 99),
)
def test_any_lengths_and_masks(lengths, sparsity, seed):
    model = bert(sparsity, seed)
    x = torch.randn(sum(lengths), 24, generator=torch.Generator().manual_seed(seed))
    packed = pack_encoder(model.encoder, "fp32")
    torch.testing.assert_close(
        packed(x, lengths).double(), stock(model, x, lengths), rtol=1e-4, atol=1e-5
    )


def test_int8_stays_within_what_quantisation_allows(kernels):
    model = bert()
    x = torch.randn(90, 24)
    exact, rounded = (pack_encoder(model.encoder, p)(x, [70, 20]) for p in ("fp32", "int8"))
    error = (exact - rounded).square().mean().sqrt() / exact.square().mean().sqrt()
    assert 1e-6 < error < 0.1


def test_a_sequence_does_not_see_its_neighbours():
    packed = pack_encoder(bert().encoder, "fp32")
    x = torch.randn(100, 24)
    together = packed(x, [30, 45, 25])
    apart = torch.cat([packed(x[:30], [30]), packed(x[30:75], [45]), packed(x[75:], [25])])
    # Other lanes, other tiles, the same sums.
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-6)


def test_nan_stays_in_its_sequence():
    packed = pack_encoder(bert().encoder, "fp32")
    x = torch.randn(40, 24)
    x[3, 5] = torch.nan
    y = packed(x, [20, 20])
    assert y[:20].isnan().all()
    assert not y[20:].isnan().any()


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(
    ("model_class", "config"),
    [
        (BertModel, BertConfig(**BERT)),
        (RobertaModel, RobertaConfig(**BERT, pad_token_id=0)),
        (
            DistilBertModel,
            DistilBertConfig(vocab_size=50, dim=24, n_layers=2, n_heads=3, hidden_dim=40),
        ),
    ],
    ids=["BERT", "RoBERTa", "DistilBERT"],
)
def test_compiled_models_of_every_family_agree(model_class, config, compacted, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    torch.manual_seed(0)
    model = model_class(config).eval()
    gossamer.sparsify(model, sparsity=0.7)
    if compacted:
        gossamer.compact(model)
    fast = gossamer.compile(model, tokens=(1, 64))
    assert any(isinstance(module, NativeEncoder) for module in fast.modules())
    ids = torch.randint(1, 50, (3, 30))
    live = torch.arange(30) < torch.tensor([30, 11, 1])[:, None]
    for mask in (None, torch.ones_like(ids), live.long()):
        with torch.inference_mode():
            wanted = model(input_ids=ids, attention_mask=mask)
            got = fast(input_ids=ids, attention_mask=mask)
        keep = torch.ones_like(live) if mask is None else mask.bool()
        torch.testing.assert_close(
            got.last_hidden_state[keep], wanted.last_hidden_state[keep], rtol=1e-4, atol=1e-5
        )
    # Few tokens run layer by layer; names of layers are what they were.
    with torch.inference_mode():
        few = ids[:1, :3]
        torch.testing.assert_close(
            fast(input_ids=few).last_hidden_state,
            model(input_ids=few).last_hidden_state,
            rtol=1e-4,
            atol=1e-5,
        )
    names = {name for name, _ in model.named_modules()}
    assert {name for name, _ in fast.named_modules()} <= names


def test_explain_names_the_encoder(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    fast = gossamer.compile(bert(), tokens=(1, 64))
    rows = {(row.name, row.tokens): row for row in gossamer.explain(fast)}
    assert rows["encoder", 64].kernel == "encoder"
    assert rows["encoder", 1].kernel == "layer by layer"
    assert rows["encoder", 64].density == pytest.approx(0.4, abs=0.01)


def test_a_dense_encoder_stays_stock(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    fast = gossamer.compile(bert(sparsity=0), tokens=64)
    assert not any(isinstance(module, NativeEncoder) for module in fast.modules())
    int8 = gossamer.compile(bert(sparsity=0), tokens=64, precision="int8")
    assert isinstance(int8.encoder, NativeEncoder)


def test_what_has_no_native_form_is_named():
    with pytest.raises(TargetError, match="MishActivation has no native form"):
        read_layers(bert(hidden_act="mish").encoder)
    with pytest.raises(TargetError, match="decoder layer"):
        read_layers(bert(is_decoder=True).encoder)
    with pytest.raises(TargetError, match="float32 on the CPU"):
        read_layers(bert(sparsity=0).double().encoder)
    assert find_encoders(torch.nn.Linear(2, 2)) == []


def test_products_alone_run_for_any_number_of_tokens(kernels):
    packed = pack_encoder(bert().encoder, "int8")
    x = torch.randn(70, 24)
    before = packed(x, [70])
    for tokens in (0, 1, 64, 70):
        packed.run_products(tokens)
    assert torch.equal(packed(x, [70]), before)
    with pytest.raises(InputError, match="must not be negative"):
        packed.run_products(-1)


def test_bad_calls_are_refused():
    packed = pack_encoder(bert().encoder, "fp32")
    with pytest.raises(InputError, match=r"expected float32 hidden states \[5, 24\]"):
        packed(torch.randn(4, 24), [5])
    with pytest.raises(InputError, match="float64"):
        packed(torch.randn(4, 24).double(), [4])
    with pytest.raises(InputError, match="precision must be"):
        PackedEncoder(read_layers(bert().encoder), 24, "int3")
    with pytest.raises(KernelError, match="cannot be pickled"):
        packed.__reduce__()
    assert packed(torch.empty(0, 24), []).shape == (0, 24)


def test_a_compiled_encoder_gives_no_gradients(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    fast = gossamer.compile(bert(), tokens=64)
    with pytest.raises(InputError, match="for inference"):
        fast.encoder(torch.randn(1, 40, 24, requires_grad=True))


def test_torch_compile_and_export_see_one_op(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    fast = gossamer.compile(bert(), tokens=64)
    ids = torch.randint(1, 50, (2, 30))
    with torch.inference_mode():
        wanted = fast(input_ids=ids).last_hidden_state
        compiled = torch.compile(fast, backend="eager")
        torch.testing.assert_close(compiled(input_ids=ids).last_hidden_state, wanted)
    exported = torch.export.export(fast, (), {"input_ids": ids})
    assert any("packed_encoder" in str(node.target) for node in exported.graph.nodes)
    handle, packed = fast.encoder._handle, fast.encoder.packed
    seen = (packed.num_layers, packed.features, packed.precision)
    x, mask = torch.randn(2, 20, 24), torch.ones(2, 20, dtype=torch.long)
    for some in (None, mask):
        arguments = (x, some, handle, *seen)
        torch.library.opcheck(torch.ops.gossamer.packed_encoder.default, arguments)
    with pytest.raises(KernelError, match="no longer exists"):
        torch.ops.gossamer.packed_encoder(x, None, 1, *seen)


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_short_way_gives_what_the_long_one_does(wrapped, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    torch.manual_seed(0)
    config = BertConfig(**BERT)
    model = (BertForSequenceClassification if wrapped else BertModel)(config).eval()
    gossamer.sparsify(model, sparsity=0.7)
    fast = gossamer.compile(model, tokens=64)
    inner = fast.bert if wrapped else fast
    assert inner.forward.__func__ is short_forward
    ids = torch.randint(1, 50, (2, 30))
    live = torch.arange(30) < torch.tensor([30, 11])[:, None]
    calls = [
        {"input_ids": ids},
        {"input_ids": ids, "attention_mask": live.long()},
        {"input_ids": ids, "attention_mask": live, "token_type_ids": torch.ones_like(ids)},
        {"input_ids": ids, "output_hidden_states": True},
        {"input_ids": ids, "return_dict": False},
        {"inputs_embeds": torch.randn(2, 30, 24)},
    ]
    for call in calls:
        with torch.inference_mode():
            wanted, got = model(**call), fast(**call)
        assert type(got) is type(wanted)
        first, second = (
            output[0] if wrapped or "attention_mask" not in call else output[0][live]
            for output in (wanted, got)
        )
        torch.testing.assert_close(second, first, rtol=1e-4, atol=1e-5)
        if not wrapped:
            torch.testing.assert_close(got[1], wanted[1], rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        twice = copy.deepcopy(fast)(**calls[0])
        torch.testing.assert_close(twice[0], fast(**calls[0])[0])
