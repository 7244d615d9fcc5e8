# SPDX-License-Identifier: Apache-2.0
"""Terms of distillation against float64, at a match, at the edges."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import InputError
from gossamer.training.recovery.distillation import (
    cosine_term,
    hidden_term,
    logits_term,
    similarity_term,
    squares_term,
)


def two(rows, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, columns, generator=generator) for _ in range(2))


@given(rows=st.integers(1, 5), classes=st.integers(1, 6), temperature=st.floats(0.5, 8))
@settings(deadline=None, max_examples=40)
def test_logits_are_the_divergence_of_softened_distributions(rows, classes, temperature):
    student, teacher = two(rows, classes, rows * 10 + classes)
    p = (teacher.double() / temperature).softmax(dim=1)
    q = (student.double() / temperature).softmax(dim=1)
    wanted = float((p * (p / q).log()).sum(dim=1).mean()) * temperature**2
    # A few roundings of the largest logarithm, which the square of the temperature scales.
    largest = float(torch.stack([p, q]).log().abs().max())
    bound = 2 * 2**-24 * (1 + largest) * temperature**2
    found = float(logits_term(student, teacher, temperature))
    assert found == pytest.approx(wanted, rel=0, abs=bound)


def test_the_size_of_gradients_does_not_hang_on_the_temperature():
    student, teacher = two(64, 10)
    norms = []
    for temperature in (20.0, 40.0):
        x = student.clone().requires_grad_()
        logits_term(x, teacher, temperature).backward()
        norms.append(float(x.grad.norm()))
    assert norms[1] == pytest.approx(norms[0], rel=0.1)


def test_vectors_against_float64():
    student, teacher = two(7, 5)
    a, b = student.double(), teacher.double()
    cosines = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
    assert float(cosine_term(student, teacher)) == pytest.approx(
        float(1 - cosines.mean()), rel=1e-5
    )
    squares = (a - b).square().mean() / b.square().mean()
    assert float(squares_term(student, teacher)) == pytest.approx(float(squares), rel=1e-5)
    a, b = (x / x.norm(dim=1, keepdim=True) for x in (a, b))
    total = sum(float(a[i] @ a[j] - b[i] @ b[j]) ** 2 for i in range(7) for j in range(7) if i != j)
    assert float(similarity_term(student, teacher)) == pytest.approx(total / 42, rel=1e-5)


def test_all_are_zero_at_a_match():
    student, _ = two(6, 4)
    assert float(logits_term(student, student, 3.0)) == pytest.approx(0, abs=1e-6)
    assert float(cosine_term(student, 5 * student)) == pytest.approx(0, abs=1e-6)
    assert float(similarity_term(student, student)) == 0
    assert float(hidden_term([student, student], [student, student])) == 0


def test_one_sample_has_no_pairs_and_still_a_gradient():
    x = torch.randn(1, 4, requires_grad=True)
    similarity_term(x, torch.randn(1, 4)).backward()
    assert not x.grad.any()


def test_hidden_states_are_averaged_over_layers_each_by_its_size():
    first, second = two(6, 4)
    small, large = (first, second), (1000 * first, 1000 * second)
    one = hidden_term([small[0]], [small[1]])
    both = hidden_term([small[0], large[0]], [small[1], large[1]])
    assert float(both) == pytest.approx(float(one), rel=1e-5)


def test_bad_input_is_named():
    student, teacher = two(3, 4)
    with pytest.raises(InputError, match="temperature must be above 0, got 0"):
        logits_term(student, teacher, 0)
    with pytest.raises(InputError, match="temperature must be above 0, got nan"):
        logits_term(student, teacher, math.nan)
    with pytest.raises(InputError, match="student has 1 layers, the teacher 2"):
        hidden_term([student], [teacher, teacher])
    with pytest.raises(InputError, match=r"student has \[3, 4\] where the teacher has \[3, 2\]"):
        hidden_term([student], [teacher[:, :2]])
