# SPDX-License-Identifier: Apache-2.0
"""The reference models: what they compute, what they refuse, and that they learn."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from gossamer.errors import InputError
from gossamer.zoo import MLP, ZOO, TinyEncoder, accuracy, cluster_problem


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def train(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int = 8) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    for epoch in range(epochs):
        for rows in torch.randperm(len(x), generator=generator(epoch)).split(128):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


def test_mlp_learns_what_a_linear_classifier_cannot():
    torch.manual_seed(0)
    split = cluster_problem(generator())
    linear, mlp = MLP((64, 8)), MLP((64, 128, 128, 8))
    for model in (linear, mlp):
        train(model, split.x_train, split.y_train)
    with torch.inference_mode():
        assert accuracy(mlp(split.x_test), split.y_test) > 0.95
        assert accuracy(linear(split.x_test), split.y_test) < 0.75


def test_tiny_encoder_learns_the_most_frequent_of_two_tokens():
    torch.manual_seed(0)
    ids = torch.randint(2, (1536, 9), generator=generator())
    labels = (ids.sum(dim=1) > 4).long()
    model = TinyEncoder(2, 2, width=16, num_heads=2, num_layers=1, ffn_width=32, max_tokens=9)
    train(model, ids[:1024], labels[:1024], epochs=4)
    with torch.inference_mode():
        assert accuracy(model(ids[1024:]), labels[1024:]) > 0.95


def test_padding_does_not_change_the_answer():
    model = TinyEncoder(11, 3, width=16, num_heads=2, max_tokens=8).eval()
    ids = torch.randint(11, (2, 5), generator=generator())
    padded = torch.cat([ids, torch.full((2, 3), 7)], dim=1)
    keep = torch.arange(8).expand(2, 8) < 5
    with torch.inference_mode():
        torch.testing.assert_close(model(padded, keep), model(ids), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(model(padded), model(ids))


def test_without_classes_the_embedding_comes_out():
    model = TinyEncoder(11, 0, width=16, num_heads=2)
    assert model(torch.zeros(3, 4, dtype=torch.int64)).shape == (3, 16)


@pytest.mark.parametrize("model", [MLP((4, 3), "gelu"), TinyEncoder(5, 2, width=8, num_heads=2)])
def test_recorded_arguments_rebuild_the_model(model):
    name = next(name for name, kind in ZOO.items() if kind is type(model))
    again = ZOO[name](**model.zoo_args())
    assert {k: v.shape for k, v in again.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }
    assert again.zoo_args() == model.zoo_args()


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: MLP((4,)), r"len\(sizes\).*got 1"),
        (lambda: MLP((4, 0)), "sizes.*got 0"),
        (lambda: MLP((4, True)), "sizes.*got True"),
        (lambda: MLP((4, 2**40)), "sizes"),
        (lambda: MLP((4, 2), "pickle"), "relu, gelu, silu"),
        (lambda: TinyEncoder(10, 2, width=10, num_heads=3), "divisible"),
        (lambda: TinyEncoder(10, 2, num_layers=10**6), "num_layers"),
        (lambda: TinyEncoder(10, 2)(torch.zeros(1, 129, dtype=torch.int64)), "128 tokens"),
        (lambda: cluster_problem(generator(), num_test=0), "num_test"),
    ],
)
def test_bad_arguments_are_refused_by_name(build, text):
    with pytest.raises(InputError, match=text):
        build()


def test_problem_depends_on_the_generator_only():
    first, second = cluster_problem(generator(3)), cluster_problem(generator(3))
    other = cluster_problem(generator(4))
    assert torch.equal(first.x_train, second.x_train)
    assert torch.equal(first.y_test, second.y_test)
    assert not torch.equal(first.x_train, other.x_train)
    assert first.x_train.shape == (8192, 64)
    assert first.x_test.shape == (1024, 64)
    assert set(first.y_train.tolist()) == set(range(8))
