# SPDX-License-Identifier: Apache-2.0
"""The small GPT: causal, recomputable, rebuilt from its arguments, and it learns."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import gossamer
from gossamer.errors import InputError
from gossamer.zoo import GPT, ZOO


def small(**changes):
    torch.manual_seed(0)
    settings = {"width": 32, "num_heads": 4, "num_layers": 2, "context": 16, **changes}
    return GPT(11, **settings)


def test_first_weights_spread_by_width():
    for width in (64, 256):
        model = small(width=width)
        assert model.tokens.weight.std().item() == pytest.approx(0.02, rel=0.1)
        wanted = {"qkv": width, "up": width, "output": 4 * width, "down": 4 * 4 * width}
        for name, squared in wanted.items():
            spread = getattr(model.blocks[1], name).weight.std().item()
            assert spread == pytest.approx(0.55 / squared**0.5, rel=0.05), name


def test_later_tokens_do_not_change_earlier_logits():
    model = small().eval()
    ids = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(1))
    other = ids.clone()
    other[:, 6:] = (other[:, 6:] + 1) % 11
    with torch.inference_mode():
        torch.testing.assert_close(model(ids)[:, :6], model(other)[:, :6])
        assert not torch.allclose(model(ids)[:, 6:], model(other)[:, 6:])


@pytest.mark.parametrize("pruned", [False, True])
def test_recompute_gives_the_same_gradients(pruned):
    model = small()
    if pruned:
        gossamer.sparsify(model, sparsity=0.5)
        gossamer.compact(model)
    ids = torch.randint(11, (2, 16), generator=torch.Generator().manual_seed(1))
    found = []
    for recompute in (False, True):
        model.recompute = recompute
        model.zero_grad()
        cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        found.append([param.grad.clone() for param in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_it_learns_to_repeat():
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(80):
        half = torch.randint(11, (32, 8), generator=generator)
        ids = torch.cat([half, half], dim=1)
        optimizer.zero_grad()
        loss = cross_entropy(model(ids[:, :-1])[:, 7:].flatten(0, 1), ids[:, 8:].flatten())
        loss.backward()
        optimizer.step()
    assert loss < 1.0  # log(11) = 2.4 for a guess


def test_a_tied_head_is_one_parameter_and_is_not_pruned():
    model = small(tied=True)
    assert model.head.weight is model.tokens.weight
    report = gossamer.sparsify(model, sparsity=0.9)
    assert {layer.name for layer in report.layers} == {
        f"blocks.{i}.{name}" for i in range(2) for name in ("qkv", "output", "up", "down")
    }


@pytest.mark.parametrize("tied", [False, True])
def test_it_is_saved_and_loaded_by_name(tmp_path, tied):
    model = small(tied=tied, recompute=True)
    assert ZOO["gpt"](**model.zoo_args()).zoo_args() == model.zoo_args()
    gossamer.sparsify(model, sparsity=0.5)
    gossamer.save(model, tmp_path / "gpt")
    again = gossamer.load(tmp_path / "gpt")
    assert isinstance(again, GPT)
    assert not again.recompute
    ids = torch.zeros(1, 3, dtype=torch.int64)
    with torch.inference_mode():
        assert torch.equal(again.eval()(ids), model.eval()(ids))


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: GPT(11, width=10, num_heads=3), "divisible"),
        (lambda: GPT(0), "vocab_size"),
        (lambda: GPT(11, num_layers=10**6), "num_layers"),
        (lambda: GPT(11, ffn_width=-1), "ffn_width"),
        (lambda: small()(torch.zeros(1, 17, dtype=torch.int64)), "at most 16 tokens"),
    ],
)
def test_bad_arguments_are_refused_by_name(build, text):
    with pytest.raises(InputError, match=text):
        build()
