# SPDX-License-Identifier: Apache-2.0
import copy
from types import SimpleNamespace

import pytest
import torch
from oneshot_runs import prune_oneshot
from torch import nn
from torch.nn.functional import cross_entropy

from gossamer.errors import InputError, PatternError, RegistryError
from gossamer.nn import MaskedLinear
from gossamer.nn.batch import Batch
from gossamer.patterns import NM, NMG, VNM, Block, Unstructured
from gossamer.pruning.calibration.flow import as_batches
from gossamer.pruning.gradients import (
    OBERT,
    make_gradient_method,
    prune_by_gradients,
    score_by_gradients,
)
from gossamer.pruning.gradients.losses import (
    RandomProbe,
    SampledLabels,
    default_loss,
    next_token_loss,
)
from gossamer.pruning.targets import find_targets

METHODS = ("taylor", "fisher", "obert")
PATTERNS = (
    *(Unstructured(), NM(2, 4), NM(1, 8), VNM(4, 8), VNM(16, 6), VNM(3, 12)),
    *(NMG(2, 4, 2), Block(4, 4), Block(1, 4)),
)


def distance_to(model):
    """A loss: the mean squared distance to the outputs that `model` gives now."""
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    return lambda net, batch: (batch.run(net) - batch.run(teacher)).square().mean()


def classify(model, batch):
    inputs, labels = batch.arguments
    return cross_entropy(model(inputs), labels)


def small_model(dtype=torch.float64, width=24, inputs=12):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 12), nn.Dropout(0.5), nn.Linear(12, 3)
    ).to(dtype)


def small_data(num_batches=4, size=6, seed=1, dtype=torch.float64, inputs=12):
    generator = torch.Generator().manual_seed(seed)
    return as_batches(
        [
            (
                torch.randn(size, inputs, generator=generator, dtype=dtype),
                torch.randint(0, 3, (size,), generator=generator),
            )
            for _ in range(num_batches)
        ],
        "test",
    )


def targets_of(model):
    return find_targets(model, targets="Linear", ignore=["4"])


def halves(targets):
    return [target.weight.numel() // 2 for target in targets]


def state_of(model):
    return {
        "weights": {name: p.detach().clone() for name, p in model.named_parameters()},
        "flags": {name: p.requires_grad for name, p in model.named_parameters()},
        "grads": {name: p.grad for name, p in model.named_parameters()},
        "modes": [module.training for module in model.modules()],
    }


def assert_same_state(model, before):
    after = state_of(model)
    for name, weight in before["weights"].items():
        assert torch.equal(weight, after["weights"][name]), name
    assert before["flags"] == after["flags"]
    assert before["modes"] == after["modes"]
    assert all(before["grads"][name] is grad for name, grad in after["grads"].items())


def numeric_gradients(model, batch, target, step=1e-6):
    """Central differences of the loss, weight by weight."""
    weight = target.weight.data.view(-1)
    result = torch.empty_like(weight)
    for i in range(len(weight)):
        kept = float(weight[i])
        weight[i] = kept + step
        above = classify(model, batch)
        weight[i] = kept - step
        below = classify(model, batch)
        weight[i] = kept
        result[i] = (above - below) / (2 * step)
    return result.view(target.weight.shape)


def test_scores_equal_finite_differences():
    model = small_model(width=4, inputs=3).eval()
    data = small_data(3, inputs=3)
    targets = targets_of(model)
    with torch.no_grad():
        numeric = [
            torch.stack([numeric_gradients(model, batch, target) for batch in data])
            for target in targets
        ]
    found = {
        method: score_by_gradients(model, data, classify, targets, method) for method in METHODS
    }
    for target, gradients in zip(targets, numeric, strict=True):
        weight = target.weight.detach()
        taylor = (weight * gradients).abs().mean(dim=0)
        fisher = weight.square() * gradients.square().mean(dim=0) / 2
        torch.testing.assert_close(found["taylor"][target.name], taylor, rtol=1e-5, atol=1e-8)
        torch.testing.assert_close(found["fisher"][target.name], fisher, rtol=1e-5, atol=1e-8)


def test_hand_example():
    # loss = sum of outputs, so the gradient of every row is the input.
    model = nn.Sequential(nn.Linear(3, 2, bias=False))
    model[0].weight.data = torch.tensor([[1.0, -2.0, 3.0], [-1.0, 1.0, 0.5]])
    data = as_batches([torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[1.0, -3.0, 2.0]])], "test")
    targets = find_targets(model)

    def total(model, batch):
        return batch.run(model).sum()

    taylor = score_by_gradients(model, data, total, targets, "taylor")["0"]
    # The second input cancels in part in the mean gradient (-1), not in the mean of |g| (2).
    assert taylor.tolist() == [[1.0, 4.0, 3.0], [1.0, 2.0, 0.5]]
    fisher = score_by_gradients(model, data, total, targets, "fisher")["0"]
    assert fisher.tolist() == [[0.5, 10.0, 9.0], [0.5, 2.5, 0.25]]
    solution = prune_by_gradients(model, data, total, targets, [3], Unstructured(), "taylor")["0"]
    assert solution.mask_RK.tolist() == [[False, True, True], [False, True, False]]
    assert model[0].weight.tolist() == [[0.0, -2.0, 3.0], [0.0, 1.0, 0.0]]


def gradients_of(model, data, target):
    """By backward(), on a copy in eval mode."""
    twin = copy.deepcopy(model).eval()
    weight = twin.get_submodule(target.name).weight
    found = []
    for batch in data:
        twin.zero_grad()
        classify(twin, batch).backward()
        found.append(weight.grad.clone())
    return torch.stack(found)


def explicit_obs(weight, gradients, mask_of, width, damping):
    """Row by row and block by block with explicit inverses: (saliencies, new weights)."""
    damp = damping * float(gradients.square().mean())
    rows, columns = weight.shape
    inverses = {}
    scores = torch.empty_like(weight)
    for r in range(rows):
        for k in range(0, columns, width):
            g = gradients[:, r, k : k + width]
            fisher = g.T @ g / len(g) + damp * torch.eye(g.shape[1], dtype=g.dtype)
            inverses[r, k] = torch.linalg.inv(fisher)
            w = weight[r, k : k + width]
            scores[r, k : k + width] = w.square() / inverses[r, k].diagonal() / 2
    mask = mask_of(scores)
    new = weight.clone()
    for (r, k), inverse in inverses.items():
        gone = (~mask[r, k : k + width]).nonzero()[:, 0]
        w = weight[r, k : k + width]
        change = inverse[:, gone] @ torch.linalg.inv(inverse[gone][:, gone]) @ w[gone]
        new[r, k : k + width] = w - change
    return scores, torch.where(mask, new, 0.0)


@pytest.mark.parametrize("width", [1, 3, 5, 32])
@pytest.mark.parametrize("num_batches", [1, 7])
@pytest.mark.parametrize("pattern", [Unstructured(), NM(2, 4), Block(2, 2)], ids=str)
def test_obert_equals_explicit_inverses(width, num_batches, pattern):
    model = small_model(width=8)
    data = small_data(num_batches)
    targets = targets_of(model)
    expected = [
        explicit_obs(
            target.weight.detach(),
            gradients_of(model, data, target),
            lambda scores: pattern.project(scores, 0.5),
            width,
            0.1,
        )
        for target in targets
    ]
    method = OBERT(damping=0.1, fisher_block=width)
    scores = score_by_gradients(model, data, classify, targets, method)
    solutions = prune_by_gradients(model, data, classify, targets, halves(targets), pattern, method)
    for target, (saliencies, weight) in zip(targets, expected, strict=True):
        torch.testing.assert_close(scores[target.name], saliencies, rtol=1e-8, atol=0)
        torch.testing.assert_close(solutions[target.name].weight_RK, weight, rtol=1e-8, atol=1e-10)
        assert torch.equal(target.weight, solutions[target.name].weight_RK)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_method_under_every_pattern(method, pattern, dtype):
    model = small_model(dtype, inputs=24)
    data = small_data(3, dtype=dtype, inputs=24)
    targets = targets_of(model)
    counts = [round(0.3 * target.weight.numel()) for target in targets]
    solutions = prune_by_gradients(model, data, classify, targets, counts, pattern, method)
    assert list(solutions) == [target.name for target in targets]
    for target, count in zip(targets, counts, strict=True):
        solution = solutions[target.name]
        shape = solution.mask_RK.shape
        pattern.validate(solution.mask_RK)
        legal = pattern.fixed_density or pattern.legal_density(shape, count / target.weight.numel())
        assert int(solution.mask_RK.sum()) == round(legal * target.weight.numel())
        assert not solution.weight_RK[~solution.mask_RK].any()
        assert torch.equal(target.weight, solution.weight_RK.to(dtype))


def test_the_update_of_obert_pays():
    # Inputs that repeat each other: weights that stay can take over what goes.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 4, bias=False)).double()
    mix = torch.randn(5, 16, dtype=torch.float64)
    inputs = torch.randn(256, 5, dtype=torch.float64) @ mix
    wanted = model(inputs).detach() + 0.1 * torch.randn(256, 4, dtype=torch.float64)

    def distance(model, batch):
        x, y = batch.arguments
        return (model(x) - y).square().sum()

    data = as_batches(
        [list(pair) for pair in zip(inputs.split(1), wanted.split(1), strict=True)], "test"
    )
    assert len(data) == 256
    losses = {}
    for name, method in (("fisher", "fisher"), ("obert", OBERT(damping=0.01))):
        pruned = copy.deepcopy(model)
        prune_by_gradients(
            pruned, data, distance, find_targets(pruned), [32], Unstructured(), method
        )
        losses[name] = float((pruned(inputs) - wanted).detach().square().mean())
    assert losses["obert"] < 0.1 * losses["fisher"]


def test_groups_of_layers_do_not_change_the_result():
    data = small_data()
    results = []
    for max_bytes in (1, 24 * 12 * 8 * len(data), 1 << 30):
        model = small_model()
        targets = targets_of(model)
        method = make_gradient_method("obert", {"max_bytes": max_bytes})
        results.append(
            prune_by_gradients(model, data, classify, targets, halves(targets), NM(2, 4), method)
        )
    for other in results[1:]:
        for name, solution in results[0].items():
            assert torch.equal(solution.weight_RK, other[name].weight_RK)


def test_passes_run_once_for_running_means_and_once_per_group_for_obert():
    calls = []

    def counted(model, batch):
        calls.append(batch)
        return classify(model, batch)

    for method, expected in (("taylor", 4), ("fisher", 4), (OBERT(max_bytes=1), 8), ("obert", 4)):
        model = small_model()
        targets = targets_of(model)
        calls.clear()
        prune_by_gradients(
            model, small_data(4), counted, targets, halves(targets), Unstructured(), method
        )
        assert len(calls) == expected


@pytest.mark.parametrize("method", METHODS)
def test_an_error_leaves_the_model_as_it_was(method):
    model = small_model().train()
    model[2].eval()
    model[0].weight.requires_grad_(False)
    model[4].bias.grad = torch.ones_like(model[4].bias)
    before = state_of(model)
    targets = targets_of(model)
    calls = []

    def failing(model, batch):
        calls.append(batch)
        if len(calls) == 3:
            raise RuntimeError("no more")
        return classify(model, batch)

    with pytest.raises(RuntimeError, match="no more"):
        prune_by_gradients(
            model, small_data(), failing, targets, halves(targets), Unstructured(), method
        )
    assert_same_state(model, before)

    def interrupt(done):
        if done.index == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune_by_gradients(
            model,
            small_data(),
            classify,
            targets,
            halves(targets),
            Unstructured(),
            method,
            interrupt,
        )
    assert_same_state(model, before)
    # And without an error everything but the pruned weights is as before, also under no_grad.
    with torch.no_grad():
        prune_by_gradients(
            model, small_data(), classify, targets, halves(targets), Unstructured(), method
        )
    before["weights"].update({t.name + ".weight": t.weight.detach().clone() for t in targets})
    assert_same_state(model, before)
    assert all(int((t.weight == 0).sum()) == t.weight.numel() // 2 for t in targets)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Unstructured(), Unstructured()),
        (NM(2, 4), NM(2, 4)),
        (NM(4, 8), VNM(4, 8)),
        (VNM(4, 6), VNM(4, 6)),
        (VNM(4, 4), VNM(4, 8)),
    ],
    ids=str,
)
def test_pruned_stays_pruned(method, first, second):
    model = small_model(inputs=24)
    sparsity = 0.3 if first.fixed_density is None else None
    prune_oneshot(model, sparsity=sparsity, pattern=first, targets=["0", "2"])
    targets = targets_of(model)
    old = [target.module.mask() for target in targets]
    counts = [target.weight.numel() // 4 for target in targets]
    solutions = prune_by_gradients(
        model, small_data(inputs=24), classify, targets, counts, second, method
    )
    for target, mask in zip(targets, old, strict=True):
        found = solutions[target.name].mask_RK
        second.validate(found)
        assert not (found & ~mask).any()
        assert isinstance(target.module, MaskedLinear)


def test_more_than_an_earlier_mask_holds_is_refused():
    model = small_model()
    prune_oneshot(model, sparsity=0.5, targets=["0", "2"])
    targets = targets_of(model)
    with pytest.raises(InputError, match="would bring 58 pruned ones back"):
        prune_by_gradients(
            model, small_data(), classify, targets, [202, 202], Unstructured(), "fisher"
        )


@pytest.mark.parametrize("method", METHODS)
def test_layers_without_gradients_are_refused(method):
    model = small_model()
    targets = targets_of(model)
    with pytest.raises(InputError, match=r"0: its gradient is zero.*distillation"):
        prune_by_gradients(
            *(model, [Batch(batch.arguments[0]) for batch in small_data()], distance_to(model)),
            *(targets, halves(targets), Unstructured(), method),
        )

    def second_half(model, batch):
        return model[4](batch.arguments[0]).sum() + 0 * model[0].weight.sum()

    with pytest.raises(InputError, match="add it to ignore"):
        prune_by_gradients(
            model, small_data(), second_half, targets, halves(targets), Unstructured(), method
        )


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: model(batch.arguments[0]), r"one number for a batch, got \[6, 3\]"),
        (lambda model, batch: 1.0, "got float"),
        (lambda model, batch: classify(model, batch).detach(), "does not depend"),
        (lambda model, batch: classify(model, batch) * torch.nan, "is nan in backward pass 0"),
        (lambda model, batch: (model[0].weight - model[0].weight).sqrt().sum(), "0: its gradient"),
    ],
)
def test_losses_that_cannot_be_used(loss, message):
    model = small_model()
    before = state_of(model)
    targets = targets_of(model)
    with pytest.raises(InputError, match=message):
        prune_by_gradients(
            model, small_data(), loss, targets, halves(targets), Unstructured(), "taylor"
        )
    assert_same_state(model, before)


def test_a_pattern_that_does_not_fit_is_refused_before_any_pass():
    model = small_model()
    with pytest.raises(PatternError, match=r"0.weight \[24, 12\]: 1:8 needs"):
        prune_by_gradients(model, [], classify, targets_of(model), [1, 1], NM(1, 8), "obert")


def test_few_gradients_are_told():
    model = small_model()
    targets = targets_of(model)
    seen = []
    for method in (OBERT(fisher_block=1), OBERT(fisher_block=5), "fisher"):
        solutions = prune_by_gradients(
            *(model, small_data(4), classify, targets, halves(targets), Unstructured(), method),
            seen.append,
        )
        few = isinstance(method, OBERT) and method.fisher_block == 5
        assert any("4 gradients" in n and "needs 20" in n for n in solutions["0"].notes) == few
    assert [(done.name, done.index, done.total) for done in seen] == 3 * [("0", 1, 2), ("2", 2, 2)]
    assert all(done.seconds >= 0 and done.notes == () for done in seen if done not in seen[2:4])


def test_settings_are_checked():
    with pytest.raises(InputError, match="'taylor' has no setting 'damping'; it has: none"):
        make_gradient_method("taylor", {"damping": 0.1})
    with pytest.raises(InputError, match="it has: damping, fisher_block, max_bytes"):
        make_gradient_method("obert", {"block": 32})
    with pytest.raises(RegistryError, match="Did you mean 'obert'"):
        make_gradient_method("obet")
    with pytest.raises(InputError, match="damping: must be above 0"):
        OBERT(damping=0.0)
    with pytest.raises(InputError, match="fisher_block: must be at least 1"):
        OBERT(fisher_block=0)


def test_attention_convolutions_tied_and_empty_layers():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    data = as_batches([torch.randn(2, 5, 8) for _ in range(3)], "test")
    targets = find_targets(encoder)
    assert "self_attn.out_proj" in [target.name for target in targets]
    scores = score_by_gradients(encoder, data, RandomProbe(), targets, "fisher")
    assert all(float(part.sum()) > 0 for part in scores.values())

    convolution = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Flatten())
    data = as_batches([torch.randn(2, 4, 5, 5) for _ in range(3)], "test")
    targets = find_targets(convolution)
    solution = prune_by_gradients(
        convolution, data, RandomProbe(), targets, [27], Unstructured(), "obert"
    )["0"]
    assert solution.mask_RK.shape == (6, 18)
    assert int((convolution[0].weight != 0).sum()) == 27

    tied = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    tied[2].weight = tied[0].weight
    data = as_batches([torch.randn(4, 6) for _ in range(3)], "test")
    targets = find_targets(tied)
    prune_by_gradients(tied, data, RandomProbe(), targets, [18], Unstructured(), "obert")
    assert int((tied[2].weight != 0).sum()) == 18

    gone = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    prune_oneshot(gone, sparsity=0.99, targets="0")
    solutions = prune_by_gradients(
        gone, data, RandomProbe(), find_targets(gone), [0, 6], Unstructured(), "obert"
    )
    assert not solutions["0"].mask_RK.any()


class Language(nn.Module):
    """Token numbers to logits; looks back over all tokens, or at all of them."""

    def __init__(self, causal, named=True):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.causal, self.named = causal, named

    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids)
        if attention_mask is not None:
            x = x * attention_mask[..., None]
        x = x.cumsum(1) if self.causal else x.sum(1, keepdim=True) + x
        return SimpleNamespace(logits=self.head(x)) if self.named else self.head(x)


def test_next_token_loss():
    model = Language(causal=True)
    ids = torch.tensor([[1, 2, 3], [4, 5, 0]])
    keep = torch.tensor([[1, 1, 1], [1, 1, 0]])
    logits = model(ids).logits
    pairs = [(0, 0, 2), (0, 1, 3), (1, 0, 5), (1, 1, 0)]
    each = [-logits[b, t].log_softmax(0)[answer] for b, t, answer in pairs]
    (batch,) = as_batches([ids], "test")
    torch.testing.assert_close(next_token_loss(model, batch), sum(each) / 4)
    (padded,) = as_batches([{"input_ids": ids, "attention_mask": keep}], "test")
    torch.testing.assert_close(next_token_loss(model, padded), sum(each[:3]) / 3)
    with pytest.raises(InputError, match="no two tokens in a row"):
        next_token_loss(model, Batch(ids[:, :1]))
    with pytest.raises(InputError, match=r"expected token numbers.*got \[6, 12\]"):
        next_token_loss(nn.Linear(12, 3).double(), Batch(small_data(1)[0].arguments[0]))


def test_the_default_loss_follows_the_outputs():
    ids = torch.tensor([[1, 2, 3], [4, 5, 0]])
    keep = torch.tensor([[1, 1, 1], [1, 1, 0]])
    (plain,) = as_batches([ids], "test")
    (padded,) = as_batches([{"input_ids": ids, "attention_mask": keep}], "test")
    for batch in (plain, padded):
        assert default_loss(Language(causal=True), batch) is next_token_loss
        assert default_loss(Language(causal=True, named=False), batch) is next_token_loss
        assert default_loss(Language(causal=False), batch, 3) == SampledLabels(3)
        assert default_loss(Language(causal=False, named=False), batch, 3) == RandomProbe(3)
    # One whole row and one whose last token is padding: only the first can tell.
    assert default_loss(Language(causal=False), Batch(ids[:, :1])) == SampledLabels(0)
    with pytest.raises(InputError, match=r"output \(int\) has no logits"):
        RandomProbe()(lambda x: 5, Batch(ids))


@pytest.mark.parametrize("loss", [SampledLabels, RandomProbe])
def test_random_losses_repeat_themselves_on_the_same_batch(loss):
    model = small_model().eval()
    first = Batch(small_data(1)[0].arguments[0])
    assert loss(0)(model, first) == loss(0)(model, first)
    assert loss(0)(model, first) != loss(1)(model, first)
    # Padding gets neither labels nor a part of the probe.
    rows = first.arguments
    padded = torch.stack([rows[:2], rows[2:4]])
    keep = torch.tensor([[True, True], [True, False]])
    (gradient,) = torch.autograd.grad(
        loss(0)(_Outputs(model, leaf := padded.clone().requires_grad_()), Batch(padded, keep)), leaf
    )
    assert torch.equal(gradient.abs().sum(-1) > 0, keep)


class _Outputs(nn.Module):
    """A model of given inputs, so that a gradient with respect to them can be asked for."""

    def __init__(self, model, inputs):
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, _):
        return self.model(self.inputs)


def test_squares_of_random_losses_are_the_curvature():
    """Gauss check: one linear layer, one sample; Fisher and Gauss-Newton are known."""
    torch.manual_seed(0)
    model = nn.Linear(2, 3, bias=False).double()
    x = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    chances = model(x).softmax(1)[0].detach()
    squares = {SampledLabels: torch.zeros(3, 2).double(), RandomProbe: torch.zeros(3, 2).double()}
    num_draws = 800
    for loss, total in squares.items():
        for seed in range(num_draws):
            (gradient,) = torch.autograd.grad(loss(seed)(model, Batch(x)), [model.weight])
            total += gradient.square() / num_draws
    fisher = (chances * (1 - chances))[:, None] * x.square()
    torch.testing.assert_close(squares[SampledLabels], fisher, rtol=0.2, atol=0)
    gauss_newton = x.square().expand(3, 2)
    torch.testing.assert_close(squares[RandomProbe], gauss_newton, rtol=0.2, atol=0)


def test_distillation_has_a_gradient_once_the_model_has_moved():
    model = small_model()
    data = [Batch(batch.arguments[0]) for batch in small_data()]
    loss = distance_to(model)
    prune_oneshot(model, sparsity=0.5, targets=["0"])
    targets = targets_of(model)
    prune_by_gradients(model, data, loss, targets, [100, 144], Unstructured(), "fisher")
    assert int((targets[1].weight != 0).sum()) == 144
