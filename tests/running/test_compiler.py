import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import DenseFallback, InputError
from gossamer.nn import Linear
from gossamer.ops import kernel_list
from gossamer.ops.fallback import fallbacks
from gossamer.ops.timing import Race
from gossamer.running.choice import Chooser, CostTable
from gossamer.running.layers import compile, explain
from gossamer.running.packed import PackedLinear
from gossamer.running.packed.packing import NO_EXAMPLE


def fixed_times(dense_us, sparse_us):
    return lambda dense, *sparse: Race((dense_us, *(sparse_us for _ in sparse)))


@pytest.fixture
def panel_only(monkeypatch):
    """One kernel per layer, so that a list of times says which layer got which."""
    panel = kernel_list("linear").get("panel")
    monkeypatch.setattr("gossamer.running.packed.packing.kernels_for", lambda *_: (panel,))


@pytest.fixture
def sparse_wins(tmp_path):
    return Chooser(CostTable(tmp_path / "wins.json"), fixed_times(100.0, 20.0))


@pytest.fixture
def dense_wins(tmp_path):
    return Chooser(CostTable(tmp_path / "loses.json"), fixed_times(20.0, 100.0))


def pruned(sparsity=0.8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 32))
    gossamer.sparsify(model, sparsity=sparsity)
    return model


def assert_same_output(fast, model, x):
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model.eval()(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compacted", [False, True])
def test_pruned_layers_are_packed_and_agree(sparse_wins, compacted):
    model = pruned()
    if compacted:
        gossamer.compact(model)
    fast = compile(model, tokens=(1, 8), chooser=sparse_wins)
    assert isinstance(fast[0], PackedLinear)
    assert isinstance(fast[3], PackedLinear)
    assert fast[0].dense_copy is None
    for shape in ((1, 40), (7, 40), (2, 3, 40), (0, 40)):
        assert_same_output(fast, model, torch.randn(shape))


def test_real_measurement_end_to_end():
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    gossamer.sparsify(model, sparsity=0.95)
    fast = compile(model, tokens=64)
    assert_same_output(fast, model, torch.randn(64, 256))
    for row in explain(fast):
        assert row.dense_us > 0
        assert row.sparse_us > 0
        assert (row.kernel != "dense") == (row.dense_us / row.sparse_us >= 1.05)


def test_layers_stay_dense_where_dense_is_faster(dense_wins):
    model = pruned()
    fast = compile(model, chooser=dense_wins)
    assert type(fast[0]) is nn.Linear
    assert_same_output(fast, model, torch.randn(5, 40))
    assert int((fast[0].weight == 0).sum()) == int((~model[0].mask()).sum())
    assert all("dense is faster (0.20x)" in row.why for row in explain(fast))


def test_token_counts_choose_separately(tmp_path, panel_only):
    times = iter([Race((10, 90)), Race((90, 10))] * 2)
    model = pruned()
    chooser = Chooser(CostTable(tmp_path / "c.json"), lambda first, second: next(times))
    fast = compile(model, tokens=(128, 1), chooser=chooser)
    layer = fast[0]
    assert layer.dense_copy is not None
    assert [layer.choice_for(n).kernel for n in (0, 1, 11, 12, 128, 10**6)] == [
        *("dense", "dense", "dense"),
        *("panel", "panel", "panel"),
    ]
    for tokens in (1, 128):
        assert_same_output(fast, model, torch.randn(tokens, 40))


def test_copy_shares_what_it_does_not_replace_and_leaves_the_model_alone(sparse_wins):
    model = pruned().train()
    fast = compile(model, chooser=sparse_wins)
    assert fast[2].weight.data_ptr() == model[2].weight.data_ptr()
    assert fast[0].bias.data_ptr() == model[0].bias.data_ptr()
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert not any(p.requires_grad for p in fast.parameters())
    assert not fast.training
    fast(torch.randn(3, 40))  # no gradients needed, so no no_grad() needed either


def test_later_edits_do_not_reach_the_packed_copy(sparse_wins):
    model = pruned()
    fast, x = compile(model, chooser=sparse_wins), torch.randn(3, 40)
    before = fast[0](x)
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert torch.equal(fast[0](x), before)


def test_inplace_converts_the_model_itself(sparse_wins):
    model = pruned()
    x = torch.randn(3, 40)
    wanted = model(x).detach()
    assert compile(model, inplace=True, chooser=sparse_wins) is model
    assert isinstance(model[0], PackedLinear)
    torch.testing.assert_close(model(x), wanted, rtol=1e-5, atol=1e-5)


def test_a_single_layer_is_a_model_too(sparse_wins):
    layer = Linear.from_dense(nn.Linear(16, 8), torch.rand(8, 16) < 0.3)
    fast = compile(layer, chooser=sparse_wins)
    assert isinstance(fast, PackedLinear)
    assert_same_output(fast, layer, torch.randn(4, 16))
    assert explain(fast)[0].name == "PackedLinear"


def test_zeros_of_another_pruner_are_found(sparse_wins):
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    with torch.no_grad():
        model[0].weight[torch.rand(32, 32) < 0.7] = 0.0
    fast = compile(model, chooser=sparse_wins)
    assert isinstance(fast[0], PackedLinear)
    assert type(fast[1]) is nn.Linear
    assert_same_output(fast, model, torch.randn(4, 32))


@pytest.mark.parametrize("pattern", ["2:4", "4:2:8", "nmg:2:4:2", "block:4x4"])
def test_every_pattern_runs(sparse_wins, pattern):
    model = nn.Sequential(nn.Linear(48, 32))
    sparsity = 0.75 if pattern.startswith("block") else None
    gossamer.sparsify(model, sparsity=sparsity, pattern=pattern)
    fast = compile(model, chooser=sparse_wins)
    assert isinstance(fast[0], PackedLinear)
    assert str(fast[0].pattern) == pattern
    assert_same_output(fast, model, torch.randn(9, 48))


def test_shared_layers_stay_shared(sparse_wins):
    layer = nn.Linear(16, 16)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    gossamer.sparsify(model, sparsity=0.5)
    fast = compile(model, chooser=sparse_wins)
    assert fast[0] is fast[2]
    assert_same_output(fast, model, torch.randn(4, 16))


def test_transformer_encoder_agrees_in_eval_mode(sparse_wins):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2).eval()
    gossamer.sparsify(model, sparsity=0.6)
    fast = compile(model, chooser=sparse_wins)
    assert isinstance(fast.layers[0].linear1, PackedLinear)
    assert_same_output(fast, model, torch.randn(3, 5, 32))
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 5])
    x = torch.randn(3, 5, 32)
    with torch.no_grad():
        left = fast(x, src_key_padding_mask=padding)[~padding]
        right = model(x, src_key_padding_mask=padding)[~padding]
    torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)
    why = {row.name: row.why for row in explain(fast)}
    assert "MultiheadAttention" in why["layers.0.self_attn.out_proj"]


def test_what_no_kernel_serves_stays_dense_counted_and_refused_under_strict(sparse_wins):
    conv = nn.Sequential(nn.Conv2d(3, 8, 3))
    gossamer.sparsify(conv, sparsity=0.5)
    fast = compile(conv, chooser=sparse_wins)
    assert type(fast[0]) is nn.Conv2d
    assert_same_output(fast, conv, torch.randn(1, 3, 8, 8))
    assert fallbacks()[f"0: {NO_EXAMPLE}"] >= 1
    assert explain(fast)[0].why == NO_EXAMPLE
    with gossamer.strict(), pytest.raises(DenseFallback, match="pass example="):
        compile(conv, chooser=sparse_wins)


def test_double_precision_layers_stay_dense_and_say_so(sparse_wins):
    model = pruned().double()
    gossamer.compact(model)
    fast = compile(model, chooser=sparse_wins)
    assert type(fast[0]) is nn.Linear
    assert fast[0].weight.dtype is torch.float64
    assert "float64" in explain(fast)[0].why


def test_to_compact_gives_the_kept_values_back(sparse_wins):
    model = pruned()
    layer = compile(model, chooser=sparse_wins)[0].to_compact()
    assert torch.equal(layer.mask(), model[0].mask())
    assert torch.equal(layer.to_dense().weight, model[0].masked_weight())


def test_compiled_model_can_be_copied_and_traced(sparse_wins):
    fast, x = compile(pruned(), chooser=sparse_wins), torch.randn(3, 40)
    assert torch.equal(copy.deepcopy(fast)(x), fast(x))
    traced = torch.compile(fast, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(traced(x), fast(x))


def test_gradients_are_refused_with_advice(sparse_wins):
    fast = compile(pruned(), chooser=sparse_wins)
    with pytest.raises(InputError, match="inference"):
        fast(torch.randn(3, 40, requires_grad=True))


@pytest.mark.parametrize("tokens", [0, -1, (), (1, 0), 1.5, "128", True])
def test_wrong_token_counts(tokens):
    with pytest.raises(InputError, match="tokens"):
        compile(pruned(), tokens=tokens)


@pytest.mark.parametrize("threads", [0, -2, 1.5])
def test_wrong_thread_counts(threads):
    with pytest.raises(InputError, match="threads"):
        compile(pruned(), threads=threads)


def test_threads_are_set_while_measuring_and_restored(tmp_path):
    seen = []

    def timer(dense, *sparse):
        seen.append(torch.get_num_threads())
        return Race((2, *(1 for _ in sparse)))

    before = torch.get_num_threads()
    compile(pruned(), threads=2, chooser=Chooser(CostTable(tmp_path / "c.json"), timer))
    assert set(seen) == {2}
    assert torch.get_num_threads() == before


def test_empty_layers_and_models_pass_through(sparse_wins):
    assert len(compile(nn.Sequential(), chooser=sparse_wins)) == 0
    fast = compile(nn.Sequential(nn.ReLU(), nn.Identity()), chooser=sparse_wins)
    assert torch.equal(fast(torch.ones(2)), torch.ones(2))


def test_explanation_of_an_uncompiled_model_says_what_to_do():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    gossamer.sparsify(model, sparsity=0.5, targets=["0"])
    rows = explain(model)
    assert "gossamer.compile" in rows[0].why
    assert rows[0].density == 0.5
    assert rows[1].kernel == "dense"
    assert "gossamer.compile" in str(rows)
    assert rows.to_dicts()[0]["shape"] == (8, 8)


def test_forward_follows_choice_for_at_every_border(tmp_path, panel_only):
    times = iter([Race((10, 90)), Race((90, 10)), Race((10, 90))])
    model = nn.Sequential(nn.Linear(7, 5))
    gossamer.sparsify(model, sparsity=0.5)
    chooser = Chooser(CostTable(tmp_path / "c.json"), lambda first, second: next(times))
    layer = compile(model, tokens=(1, 10, 100), chooser=chooser)[0]
    calls = []
    run = layer.runs["panel"]
    layer.runs["panel"] = lambda x, bias, act: calls.append(len(x)) or run(x, bias, act)
    layer._switches = layer._find_switches()
    counts = range(120)
    for tokens in counts:
        layer(torch.randn(tokens, 7))
    assert calls == [n for n in counts if layer.choice_for(n).is_sparse]
    assert calls == list(range(4, 32))


def test_a_forced_kernel_runs_unmeasured_and_others_say_why():
    model = nn.Sequential(nn.Linear(40, 64), nn.Linear(64, 32))
    gossamer.sparsify(model, sparsity=0.3)
    fast = compile(model, tokens=5, kernel="panel")
    assert [row.kernel for row in explain(fast)] == ["panel", "panel"]
    assert {row.why for row in explain(fast)} == {"forced"}
    assert_same_output(fast, model, torch.randn(5, 40))
    dense = compile(model, tokens=5, kernel="vnm")
    assert {row.why for row in explain(dense)} == {
        "vnm does not take unstructured at this precision"
    }
    with pytest.raises(InputError, match=r"no kernel is called 'fast'.*panel"):
        compile(model, kernel="fast")


def test_precision_is_checked():
    with pytest.raises(InputError, match="fp32, bf16, int8, int4; got 'fp8'"):
        compile(pruned(), precision="fp8")


def test_lower_precision_runs_only_where_it_is_allowed():
    model = pruned()
    fast = compile(model, tokens=16, precision="int8", kernel="int8_panel")
    assert {row.kernel for row in explain(fast)} == {"int8_panel"}
    x = torch.randn(16, 40)
    with torch.no_grad():
        wanted, found = model.eval()(x), fast(x)
    error = (found - wanted).norm() / wanted.norm()
    assert 1e-4 < error < 0.05
    exact = compile(model, tokens=16, kernel="int8_panel")
    assert {row.kernel for row in explain(exact)} == {"dense"}


def test_a_lossy_layer_gives_its_values_back_exactly():
    model = pruned()
    fast = compile(model, tokens=1, precision="int4", kernel="few/indexed-int4")
    for index in (0, 3):
        kept = fast[index].to_compact()
        assert torch.equal(kept.to_dense().weight, model[index].masked_weight())
