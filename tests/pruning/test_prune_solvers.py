import itertools

import pytest
import torch

from gossamer.errors import InputError, PatternError
from gossamer.patterns import NM, NMG, VNM, Block, Unstructured
from gossamer.pruning.solvers import LayerProblem, damped, refit
from gossamer.pruning.solvers.problem import output_square
from gossamer.pruning.solvers.reconstruction import ADMM, ExactOBS
from gossamer.pruning.solvers.sparsegpt import SparseGPT, WeightLevels

PATTERNS = (
    Unstructured(),
    *(NM(2, 4), NM(1, 8), NM(2, 6), NM(4, 16)),
    *(VNM(4, 8), VNM(16, 12)),
    *(NMG(1, 4, 3), NMG(2, 4, 2)),
    *(Block(1, 4), Block(4, 4), Block(8, 3)),
)
SOLVERS = (SparseGPT(), SparseGPT(block=20), SparseGPT(bits=4), ADMM(), ExactOBS())


def correlated_gram(columns, samples=400, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(columns, columns, generator=generator, dtype=dtype)
    x = torch.randn(samples, columns, generator=generator, dtype=dtype) @ mix
    return x.T @ x / samples


def problem_of(pattern, shape=(16, 48), sparsity=0.5, seed=0, allowed=None, dtype=torch.float64):
    rows, columns = shape
    weight = torch.randn(
        rows, columns, generator=torch.Generator().manual_seed(seed + 1), dtype=dtype
    )
    gram = correlated_gram(columns, seed=seed, dtype=dtype)
    count = round((1 - sparsity) * rows * columns)
    return LayerProblem("layer", weight, gram, pattern, count, allowed)


def damped_cost(problem, weight, damping=0.01):
    gram = damped(problem.gram_KK, damping).matrix_KK
    return output_square(weight - problem.weight_RK, gram)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("sparsity", [0.3, 0.5, 0.9])
def test_every_solver_under_every_pattern(solver, pattern, sparsity):
    problem = problem_of(pattern, sparsity=sparsity)
    if isinstance(solver, ExactOBS) and not isinstance(pattern, Unstructured | NM):
        with pytest.raises(PatternError, match="sparsegpt or admm"):
            solver(problem)
        return
    solution = solver(problem)
    pattern.validate(solution.mask_RK)
    assert torch.equal(solution.weight_RK != 0, solution.mask_RK & (solution.weight_RK != 0))
    assert not solution.weight_RK[~solution.mask_RK].any()
    legal = pattern.fixed_density or pattern.legal_density((16, 48), 1 - sparsity)
    assert int(solution.mask_RK.sum()) == round(legal * 16 * 48)
    assert not torch.signbit(solution.weight_RK[~solution.mask_RK]).any()


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("bits", [None, 4])
def test_sparsegpt_counts_exactly_what_the_outputs_change(pattern, bits):
    problem = problem_of(pattern)
    solution = SparseGPT(bits=bits)(problem)
    cost = damped_cost(problem, solution.weight_RK)
    assert solution.cost == pytest.approx(cost, rel=1e-10)


@pytest.mark.parametrize("pattern", [Unstructured(), NM(2, 4)], ids=str)
def test_sparsegpt_with_a_fixed_mask_does_not_depend_on_the_lazy_block(pattern):
    generator = torch.Generator().manual_seed(3)
    mask = pattern.project(torch.rand(16, 48, generator=generator), 0.5)
    problem = problem_of(pattern, allowed=mask)
    results = [SparseGPT(block=block)(problem) for block in (4, 12, 20, 48, 128)]
    for result in results:
        assert torch.equal(result.mask_RK, mask)
        torch.testing.assert_close(result.weight_RK, results[0].weight_RK, rtol=0, atol=1e-12)


def test_sparsegpt_equals_optimal_brain_surgery_from_left_to_right():
    problem = problem_of(Unstructured(), shape=(5, 12))
    solution = SparseGPT()(problem)
    gram = damped(problem.gram_KK, 0.01).matrix_KK
    weight = problem.weight_RK.clone()
    for column in range(12):
        inverse = torch.linalg.inv(gram[column:, column:])
        for row in range(5):
            if not solution.mask_RK[row, column]:
                step = weight[row, column] / inverse[0, 0]
                weight[row, column:] -= step * inverse[:, 0]
    torch.testing.assert_close(solution.weight_RK, weight * solution.mask_RK, rtol=0, atol=1e-11)


def test_sparsegpt_on_uncorrelated_inputs_is_magnitude_pruning():
    problem = problem_of(NM(2, 4))
    problem = LayerProblem("layer", problem.weight_RK, torch.eye(48).double(), NM(2, 4), 0)
    solution = SparseGPT()(problem)
    mask = NM(2, 4).project(problem.weight_RK.abs())
    assert torch.equal(solution.mask_RK, mask)
    torch.testing.assert_close(solution.weight_RK, problem.weight_RK * mask, rtol=0, atol=1e-14)


def test_sparsegpt_leaves_less_error_than_dropping_the_same_weights():
    problem = problem_of(Unstructured())
    solution = SparseGPT()(problem)
    plain = problem.weight_RK * solution.mask_RK
    assert problem.error(solution.weight_RK) < 0.8 * problem.error(plain)


@pytest.mark.parametrize("pattern", [Unstructured(), NM(2, 4)])
@pytest.mark.parametrize("block", [128, 100, 48])
def test_joint_quantisation_to_4_bits_has_16_levels_in_64_columns_of_a_row(pattern, block):
    problem = problem_of(pattern, shape=(6, 200))
    solution = SparseGPT(bits=4, block=block)(problem)
    for row_K in solution.weight_RK:
        for group in row_K.split(64):
            kept = group[group != 0].abs()
            # One bf16 scale explains the group: some whole number of it is the smallest weight.
            scales = (kept.min() / torch.arange(1, 9)).bfloat16().double()
            levels = group / scales[:, None]
            fits = (levels - levels.round()).abs().amax(dim=1) < 1e-9
            assert (fits & (levels.abs().amax(dim=1) <= 7)).any()


def test_joint_quantisation_to_8_bits_has_one_scale_per_row():
    problem = problem_of(Unstructured())
    solution = SparseGPT(bits=8)(problem)
    scale_R = (problem.weight_RK.abs().amax(dim=1) / 127).bfloat16().double()
    levels = solution.weight_RK / scale_R[:, None]
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-9)
    assert levels.abs().max() <= 127


def test_joint_quantisation_loses_less_than_rounding_afterwards():
    problem = problem_of(Unstructured(), shape=(16, 128), sparsity=0.0)
    joint = SparseGPT(bits=4)(problem)
    grids = [WeightLevels(part, 4) for part in problem.weight_RK.split(64, dim=1)]
    parts = [
        torch.stack([grid.round(column_R) for column_R in part.T], dim=1)
        for grid, part in zip(grids, problem.weight_RK.split(64, dim=1), strict=True)
    ]
    assert problem.error(joint.weight_RK) < 0.8 * problem.error(torch.cat(parts, dim=1))


def test_a_grid_of_zeros_rounds_to_zeros():
    grid = WeightLevels(torch.zeros(3, 5), 4)
    assert torch.equal(grid.round(torch.zeros(3)), torch.zeros(3))


def test_joint_quantisation_refuses_other_numbers_of_bits():
    with pytest.raises(InputError, match="4 or 8 bits, got 3"):
        WeightLevels(torch.zeros(3, 5), 3)


def test_refit_is_the_least_squares_solution():
    problem = problem_of(Unstructured(), shape=(6, 10))
    mask = torch.rand(6, 10, generator=torch.Generator().manual_seed(5)) < 0.5
    mask[0] = True
    mask[1] = False
    mask[2] = torch.arange(10) == 3
    found = refit(problem, mask, damping=0.0).weight_RK
    for row in range(6):
        kept = mask[row].nonzero().flatten()
        expected = torch.zeros(10, dtype=torch.float64)
        if len(kept):
            right = (problem.gram_KK @ problem.weight_RK[row])[kept]
            expected[kept] = torch.linalg.solve(problem.gram_KK[kept][:, kept], right)
        torch.testing.assert_close(found[row], expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found[0], problem.weight_RK[0])


def test_refit_in_slices_equals_refit_at_once(monkeypatch):
    problem = problem_of(Unstructured())
    mask = torch.rand(16, 48, generator=torch.Generator().manual_seed(5)) < 0.4
    whole = refit(problem, mask).weight_RK
    monkeypatch.setattr("gossamer.pruning.solvers.problem.SLICE_NUMBERS", 1000)
    torch.testing.assert_close(refit(problem, mask).weight_RK, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conjugate_gradients_give_what_factors_give(monkeypatch, dtype):
    problem = problem_of(Unstructured(), shape=(8, 200), dtype=dtype)
    mask = torch.rand(8, 200, generator=torch.Generator().manual_seed(5)) < 0.8
    mask[0] = True
    iterated = refit(problem, mask).weight_RK
    monkeypatch.setattr("gossamer.pruning.solvers.problem.MAX_FACTORED", 1000)
    factored = refit(problem, mask).weight_RK
    bound = 1e-9 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(iterated, factored, rtol=bound, atol=bound)
    best, found = (damped_cost(problem, weight) for weight in (factored, iterated))
    assert found <= best * (1 + 1e-4) + 1e-6


def test_rows_that_do_not_converge_are_factored(monkeypatch):
    problem = problem_of(Unstructured(), shape=(4, 200))
    mask = torch.rand(4, 200, generator=torch.Generator().manual_seed(5)) < 0.8
    wanted = refit(problem, mask).weight_RK
    monkeypatch.setattr("gossamer.pruning.solvers.problem._MAX_STEPS", 1)
    torch.testing.assert_close(refit(problem, mask).weight_RK, wanted, rtol=1e-8, atol=1e-8)


def brute_force(problem, kept):
    """The best mask of every row with `kept` weights, by trying all."""
    columns = problem.weight_RK.shape[1]
    choices = list(itertools.combinations(range(columns), kept))
    masks = torch.zeros(len(choices), columns, dtype=torch.bool)
    masks.scatter_(1, torch.tensor(choices), True)
    gram = damped(problem.gram_KK, 0.01).matrix_KK
    best = 0.0
    for weight in problem.weight_RK:
        row = weight.repeat(len(choices), 1)
        one = LayerProblem("row", row, problem.gram_KK, Unstructured(), kept)
        change = refit(one, masks).weight_RK - row
        best += float(((change @ gram) * change).sum(dim=1).min())
    return best


def test_stronger_methods_leave_less_error():
    """Over random layers with correlated inputs, in the order of the effort they spend."""
    totals = dict.fromkeys(("magnitude", "sparsegpt", "refit", "admm", "exact", "optimum"), 0.0)
    for seed in range(10):
        problem = problem_of(NM(5, 10), shape=(2, 10), seed=seed)
        magnitude = problem.weight_RK * NM(5, 10).project(problem.weight_RK.abs())
        sparsegpt = SparseGPT()(problem)
        refitted = refit(problem, sparsegpt.mask_RK)
        for name, weight in {
            "magnitude": magnitude,
            "sparsegpt": sparsegpt.weight_RK,
            "refit": refitted.weight_RK,
            "admm": ADMM()(problem).weight_RK,
            "exact": ExactOBS()(problem).weight_RK,
        }.items():
            totals[name] += damped_cost(problem, weight)
        totals["optimum"] += brute_force(problem, 5)
    assert totals["optimum"] <= totals["exact"] < totals["refit"] < totals["sparsegpt"]
    assert totals["admm"] < totals["refit"]
    assert totals["sparsegpt"] < totals["magnitude"]


def test_exact_obs_takes_the_cheapest_steps_of_all_rows():
    problem = problem_of(Unstructured(), shape=(4, 8))
    quiet = problem.weight_RK.clone()
    quiet[1] *= 1e-3  # a row that hardly matters is emptied first
    problem = LayerProblem("layer", quiet, problem.gram_KK, Unstructured(), 20)
    solution = ExactOBS()(problem)
    assert int(solution.mask_RK.sum()) == 20
    assert int(solution.mask_RK[1].sum()) == 0


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_fewer_samples_than_inputs_and_dead_inputs(solver):
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(0))
    x[:, 7] = 0.0
    weight = torch.randn(16, 48, generator=torch.Generator().manual_seed(1))
    problem = LayerProblem("layer", weight, x.T @ x / 5, NM(2, 4), 0)
    solution = solver(problem)
    assert torch.isfinite(solution.weight_RK).all()
    NM(2, 4).validate(solution.mask_RK)


def test_damping_is_raised_and_said():
    gram = torch.ones(8, 8)  # rank one: its factor is lost without much damping
    gram[0, 0] = 1 - 1e-3  # and slightly indefinite
    problem = LayerProblem("layer", torch.randn(4, 8), gram, NM(2, 4), 0)
    solution = SparseGPT(damping=1e-4)(problem)
    assert any("damping was raised from 0.0001" in note for note in solution.notes)
    assert torch.isfinite(solution.weight_RK).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_statistics_that_are_not_finite_are_refused(bad):
    gram = torch.eye(8)
    gram[3, 3] = bad
    with pytest.raises(InputError, match="1 of 8 inputs have squares that are not finite"):
        SparseGPT()(LayerProblem("layer", torch.randn(4, 8), gram, NM(2, 4), 0))


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("pattern", [Unstructured(), Block(4, 4)], ids=str)
def test_an_earlier_mask_is_never_left(solver, pattern):
    if isinstance(solver, ExactOBS) and isinstance(pattern, Block):
        pytest.skip("exact OBS drops single weights")
    first = pattern.project(torch.rand(16, 48, generator=torch.Generator().manual_seed(9)), 0.5)
    first[:, :16] = False  # an uneven mask: whole column blocks are gone
    problem = problem_of(pattern, sparsity=0.8, allowed=first)
    solution = solver(problem)
    assert not (solution.mask_RK & ~first).any()
    pattern.validate(solution.mask_RK)
    legal = pattern.legal_density((16, 48), 0.2)
    assert int(solution.mask_RK.sum()) == round(legal * 16 * 48)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("shape", [(1, 4), (3, 4), (0, 4)])
def test_small_shapes_and_the_ends_of_the_range(solver, shape):
    for count in (0, 1, shape[0] * 4):
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(2))
        problem = LayerProblem("layer", weight, correlated_gram(4).float(), Unstructured(), count)
        solution = solver(problem)
        assert solution.weight_RK.shape == shape
        assert int(solution.mask_RK.sum()) == min(count, shape[0] * 4)
        if count and count == shape[0] * 4 and not isinstance(solver, SparseGPT):
            torch.testing.assert_close(solution.weight_RK, weight, rtol=1e-3, atol=1e-3)
