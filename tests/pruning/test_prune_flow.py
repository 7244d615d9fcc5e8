import copy

import pytest
import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn import MaskedLinear
from gossamer.nn.batch import Batch
from gossamer.patterns import NM, Unstructured
from gossamer.pruning.calibration import CalibratedPruning, Journal
from gossamer.pruning.calibration.flow import as_batches, stops
from gossamer.pruning.calibration.journal import DiskJournal, data_digest, model_digest
from gossamer.pruning.calibration.statistics import gram, input_rows, moments
from gossamer.pruning.methods import make_method
from gossamer.pruning.targets import find_targets
from gossamer.zoo import TinyEncoder


def encoder(seed=0):
    torch.manual_seed(seed)
    return TinyEncoder(50, 3, width=32, num_heads=4, num_layers=2, ffn_width=64).eval()


def token_batches(count=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(50, (3, 7 + i), generator=generator) for i in range(count)]


def prune(model, data, method="sparsegpt", sparsity=0.5, pattern=None, **options):
    pattern = pattern or Unstructured()
    targets = find_targets(model)
    run = CalibratedPruning(make_method(method, {}), pattern, **options)
    counts = [round((1 - sparsity) * target.weight.numel()) for target in targets]
    return run.run(model, as_batches(data, "test"), targets, counts)


def test_every_layer_is_met_once_with_the_inputs_it_really_gets():
    model, data = encoder(), token_batches()
    targets = [target.module for target in find_targets(model)]
    seen = {}
    with torch.no_grad():
        expected = {id(module): [] for module in targets}
        handles = [
            module.register_forward_pre_hook(
                lambda module, args: expected[id(module)].append(args[0])
            )
            for module in targets
        ]
        for ids in data:
            model(ids)
        for handle in handles:
            handle.remove()
        for stop in stops([lambda ids=ids: model(ids) for ids in data], targets):
            assert id(stop.module) not in seen
            assert stop.batches == list(range(len(data)))
            seen[id(stop.module)] = [x.clone() for x in stop.inputs]
    assert list(seen) == [id(module) for module in targets]
    for key, inputs in seen.items():
        assert all(torch.equal(a, b) for a, b in zip(inputs, expected[key], strict=True))


def test_a_change_in_the_body_is_what_the_next_layers_see():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    x = torch.randn(3, 4)
    inputs = []
    with torch.no_grad():
        for stop in stops([lambda: model(x)], [model[0], model[1]]):
            inputs.append(stop.inputs[0])
            if stop.module is model[0]:
                model[0].weight.zero_()
                model[0].bias.fill_(2.0)
    assert torch.equal(inputs[1], torch.full((3, 4), 2.0))


def test_no_hooks_are_left_and_nothing_runs_behind_the_last_layer():
    ran = []

    class Tail(nn.Module):
        def forward(self, x):
            ran.append(1)
            return x

    model = nn.Sequential(nn.Linear(4, 4), Tail())
    for _ in stops([lambda: model(torch.randn(2, 4))], [model[0]]):
        pass
    assert not ran
    assert not model[0]._forward_pre_hooks


@pytest.mark.parametrize("when", ["model", "body"])
def test_an_error_cleans_up(when):
    class Bad(nn.Module):
        def forward(self, x):
            if when == "model":
                raise ValueError("from the model")
            return x

    model = nn.Sequential(nn.Linear(4, 4), Bad(), nn.Linear(4, 4))
    calls = [lambda: model(torch.randn(2, 4))] * 3

    def walk():
        for stop in stops(calls, [model[0], model[2]]):
            if when == "body" and stop.module is model[2]:
                raise ValueError("from the body")

    with pytest.raises(ValueError, match=f"from the {when}"):
        walk()
    assert not model[0]._forward_pre_hooks
    assert not model[2]._forward_pre_hooks


def test_batches_that_take_different_ways():
    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.end = (nn.Linear(2, 2) for _ in range(3))

        def forward(self, x):
            return self.end(self.a(x) if x[0, 0] > 0 else self.b(x))

    model = Routed()
    data = [torch.tensor([[1.0, 0]]), torch.tensor([[-1.0, 0]]), torch.tensor([[2.0, 0]])]
    met = {
        name: stop.batches
        for stop in stops([lambda x=x: model(x) for x in data], [model.a, model.b, model.end])
        for name, module in model.named_children()
        if module is stop.module
    }
    assert met == {"a": [0, 2], "b": [1], "end": [0, 1, 2]}


@pytest.mark.parametrize("width", [1, 63, 64, 65, 130, 300])
def test_gram_in_strips(width):
    rows = torch.randn(20, width, dtype=torch.float64)
    torch.testing.assert_close(gram(rows), rows.T @ rows)


def test_padding_does_not_count():
    layer, x = nn.Linear(4, 2), torch.randn(2, 3, 4)
    keep = torch.tensor([[True, True, False], [True, False, False]])
    rows = x[keep]
    found = moments([input_rows(layer, x, keep, "layer")] * 2, "gram", "layer")
    torch.testing.assert_close(found, rows.T @ rows / 3)
    torch.testing.assert_close(
        moments([input_rows(layer, x, keep, "layer")], "squares", "layer"), rows.square().mean(0)
    )


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"padding": 1}, {"dilation": 2}])
def test_rows_of_a_convolution_are_what_its_outputs_see(options):
    conv = nn.Conv2d(3, 5, 3, **options)
    x = torch.randn(2, 3, 9, 8)
    rows = input_rows(conv, x, None, "conv")
    y = rows @ conv.weight.flatten(1).T + conv.bias
    expected = conv(x).flatten(2).transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["wanda", "sparsegpt", "admm", "exact-obs", "magnitude"])
@pytest.mark.parametrize("pattern", [Unstructured(), NM(2, 4)], ids=str)
def test_methods_end_to_end_with_exact_counts(method, pattern):
    model, data = encoder(), token_batches()
    dense = copy.deepcopy(model)
    solutions = prune(model, data, method, pattern=pattern)
    for target in find_targets(model):
        solution = solutions[target.name]
        pattern.validate(solution.mask_RK)
        assert int(solution.mask_RK.sum()) == target.weight.numel() // 2
        assert torch.equal(target.weight.detach(), solution.weight_RK)
    assert not torch.equal(model(data[0]), dense(data[0]))


def test_matching_the_dense_model_brings_outputs_nearer_to_it():
    data = token_batches(20)
    dense = encoder()
    distance = {}
    for match in ("pruned", "dense"):
        model = encoder()
        prune(model, data, match=match)
        with torch.no_grad():
            distance[match] = sum(float((model(x) - dense(x)).norm()) for x in data)
    assert distance["dense"] < 0.8 * distance["pruned"]


def test_methods_order_by_what_they_do_to_the_outputs():
    data, held_out = token_batches(20), token_batches(10, seed=2)
    dense = encoder()
    distance = {}
    for method in ("magnitude", "sparsegpt", "admm"):
        model = encoder()
        prune(model, data, method, sparsity=0.6)
        with torch.no_grad():
            distance[method] = sum(float((model(x) - dense(x)).norm()) for x in held_out)
    assert distance["admm"] < distance["sparsegpt"] < distance["magnitude"]


def test_wanda_keeps_a_small_weight_on_a_large_input_and_compares_inside_rows():
    layer = nn.Linear(4, 2, bias=False)
    layer.weight.data = torch.tensor([[1.0, 0.1, 0.5, 0.5], [9.0, 8.0, 7.0, 6.0]])
    model = nn.Sequential(layer)
    x = torch.tensor([[1.0, 100.0, 1.0, 0.1]])
    solutions = prune(model, [x], "wanda")
    assert solutions["0"].mask_RK.tolist() == [
        [True, True, False, False],
        [True, True, False, False],
    ]


def test_a_failed_run_leaves_the_model_as_it_was():
    model, data = encoder(), token_batches()
    before = copy.deepcopy(model.state_dict())

    class Full(Journal):
        def note(self, name, solution):
            if name == "layers.1.down":
                raise OSError("disk full")

    model.train()
    with pytest.raises(OSError, match="disk full"):
        prune(model, data, journal=Full())
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_layer_that_is_used_twice_sees_the_inputs_of_both_uses():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = nn.Linear(8, 8, bias=False)

        def forward(self, x):
            return self.shared(torch.relu(self.shared(x)))

    torch.manual_seed(0)
    model = Twice()
    x = torch.randn(64, 8)
    weight = model.shared.weight.detach().clone()
    second = torch.relu(x @ weight.T)
    rows = torch.cat([x, second])
    solutions = prune(model, [x], "wanda")
    scores = weight.abs() * rows.square().mean(0).sqrt()
    expected = torch.zeros(8, 8, dtype=torch.bool).scatter_(1, scores.topk(4).indices, True)
    assert torch.equal(solutions["shared"].mask_RK, expected)


def test_tied_layers_are_pruned_once_with_the_inputs_of_both():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.ReLU(), nn.Linear(6, 6, bias=False))
    model[2].weight = model[0].weight
    solutions = prune(model, [torch.randn(32, 6)])
    assert list(solutions) == ["0"]
    assert torch.equal(model[2].weight, solutions["0"].weight_RK)


def test_a_masked_layer_is_pruned_further_inside_its_mask():
    torch.manual_seed(0)
    first = nn.Linear(16, 8)
    mask = Unstructured().project(torch.rand(8, 16), 0.5)
    model = nn.Sequential(MaskedLinear.from_dense(first, mask, Unstructured()))
    solutions = prune(model, [torch.randn(40, 16)], sparsity=0.75)
    assert not (solutions["0"].mask_RK & ~mask).any()
    assert int(solutions["0"].mask_RK.sum()) == 32
    with pytest.raises(InputError, match=r"would bring .* pruned ones back"):
        prune(model, [torch.randn(40, 16)], sparsity=0.25)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "needs calibration data"),
        ([], "is empty"),
        (torch.zeros(2, 3), "expected a list of batches, got one Tensor"),
        ([torch.full((2, 4), float("nan"))], "0: its inputs on the calibration data are NaN"),
        ([torch.full((2, 4), 1e30)], "0: its inputs on the calibration data are NaN or too large"),
        ([torch.zeros(0, 4)], "0: no row of the calibration data reached this layer"),
    ],
)
def test_bad_data_is_refused(data, words):
    model = nn.Sequential(nn.Linear(4, 4))
    before = model[0].weight.detach().clone()
    with pytest.raises(InputError, match=words):
        prune(model, data)
    assert torch.equal(model[0].weight, before)


def test_a_layer_that_is_never_called_is_named():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with pytest.raises(InputError, match=r"self_attn.out_proj: no calibration batch reached"):
        prune(model, [torch.randn(2, 3, 8)])


def test_unknown_settings_of_a_method():
    with pytest.raises(InputError, match="'wanda' has no setting 'damping'; it has: none"):
        make_method("wanda", {"damping": 0.1})


def test_a_singular_gram_matrix_falls_back_to_wanda_and_says_so(monkeypatch):
    monkeypatch.setattr("gossamer.pruning.solvers.problem.ESCALATION", (-1e6,))
    notes = []
    model = nn.Sequential(nn.Linear(4, 4))
    prune(model, [torch.randn(9, 4)], progress=lambda done: notes.extend(done.notes))
    assert notes[0].startswith("pruned by Wanda without new weights")
    assert int((model[0].weight != 0).sum()) == 8


class Stopped(Exception):
    pass


@pytest.mark.parametrize("after", [1, 5, 11])
@pytest.mark.parametrize("match", ["pruned", "dense"])
def test_a_stopped_run_goes_on_and_ends_with_the_same_bits(tmp_path, after, match):
    data = token_batches()
    whole = encoder()
    prune(whole, data, match=match)
    model = encoder()
    key = {"model": model_digest(model), "data": data_digest(as_batches(data, "test"))}
    journal = DiskJournal(tmp_path / "journal", key)

    def stop(done):
        if done.index == after:
            raise Stopped

    with pytest.raises(Stopped):
        prune(model, data, match=match, journal=journal, progress=stop)
    again = DiskJournal(tmp_path / "journal", key)
    prune(model, data, match=match, journal=again)
    assert again.num_recalled == after
    assert all(
        torch.equal(value, whole.state_dict()[name]) for name, value in model.state_dict().items()
    )
    again.remove()
    assert not (tmp_path / "journal").exists()


def test_a_journal_of_another_run_is_refused(tmp_path):
    DiskJournal(tmp_path / "j", {"recipe": "a", "data": "b"})
    with pytest.raises(InputError, match="belongs to another run: recipe was a, is c"):
        DiskJournal(tmp_path / "j", {"recipe": "c", "data": "b"})


def test_a_batch_keeps_its_padding():
    mask = torch.tensor([[1, 1, 0]])
    batch = as_batches([{"input_ids": mask, "attention_mask": mask}], "test")[0]
    assert torch.equal(batch.keep, mask.bool())
    assert as_batches([Batch(mask)], "test")[0].keep is None


def test_decoders_remember_no_keys_and_values_while_data_flows():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    caches = []
    model.model.layers[0].register_forward_pre_hook(
        lambda _, args, kwargs: caches.append(kwargs.get("past_key_values")), with_kwargs=True
    )
    prune(model, [{"input_ids": torch.randint(32, (2, 8))}], match="dense")
    assert caches
    assert all(cache is None for cache in caches)
    assert model.config.use_cache is True
