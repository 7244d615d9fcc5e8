"""Sparsifiers against plain loops, from the edges of their settings."""

import math

import pytest
import torch

import gossamer
from gossamer.errors import InputError, RegistryError
from gossamer.ops.sparsifiers import SPARSIFIERS, parse_sparsifier, sparsify, sparsify_gradient
from gossamer.ops.sparsifiers.applying import pass_gradient_through

BUILT_IN = ["keep-all", "random:0.5", "threshold:0.5", "fraction:0.9", "per-block:0.75:16"]
BUILT_IN += ["block-fraction:0.5:4", "2:4", "nmg:2:4:4", "1:8"]


def largest(scores, count):
    """Places of the `count` largest numbers, the first of equals first."""
    return set(sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count])


def by_hand(text, x):
    """The result by loops over Python floats."""
    name, *numbers = text.split(":")
    flat = x.double().flatten().tolist()
    magnitude = [math.inf if math.isnan(v) else abs(v) for v in flat]
    n = len(flat)
    if name == "threshold":
        kept = {i for i in range(n) if not abs(flat[i]) < float(numbers[0])}
    elif name == "fraction":
        kept = largest(magnitude, round((1 - float(numbers[0])) * n))
    elif name == "per-block":
        length = int(numbers[1])
        count = round((1 - float(numbers[0])) * length)
        starts = range(0, n, length)
        kept = {s + i for s in starts for i in largest(magnitude[s : s + length], count)}
    elif name == "block-fraction":
        length = int(numbers[1])
        sums = [math.fsum(magnitude[s : s + length]) for s in range(0, n, length)]
        blocks = largest(sums, round((1 - float(numbers[0])) * len(sums)))
        kept = {b * length + i for b in blocks for i in range(length)}
    return torch.tensor([v if i in kept else 0.0 for i, v in enumerate(flat)]).view(x.shape)


@pytest.mark.parametrize("shape", [(0,), (1, 12), (5, 12), (2, 3, 24)], ids=str)
@pytest.mark.parametrize(
    "text",
    [
        *("threshold:0", "threshold:0.5", "threshold:1e30", "fraction:0", "fraction:1"),
        *("fraction:0.37", "per-block:0.5:4", "per-block:1:3", "per-block:0:12"),
        *("block-fraction:0.5:4", "block-fraction:0:12", "block-fraction:1:1"),
    ],
)
def test_what_stays_is_what_loops_keep(text, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    if x.numel() > 4:
        x.view(-1)[1], x.view(-1)[3] = 0.5, -0.5  # equal to a threshold, and to each other
    assert torch.equal(sparsify(x, parse_sparsifier(text)), by_hand(text, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("threshold", [0.1, 0.5, 1 / 3, 1e-40, 2.0])
def test_a_threshold_keeps_what_is_equal_to_it(dtype, threshold):
    near = torch.tensor(threshold, dtype=dtype)
    up, down = (near.nextafter(torch.tensor(s * math.inf, dtype=dtype)) for s in (1, -1))
    x = torch.stack([near, up, down, -near, -up, -down, near * 0])
    y = sparsify(x, parse_sparsifier(f"threshold:{threshold!r}"))
    wanted = [v if abs(v) >= threshold else 0.0 for v in x.double().tolist()]
    if dtype in (torch.float16, torch.bfloat16):
        # torch rounds the number to the type that it is compared with.
        wanted = [v if abs(v) >= float(near) else 0.0 for v in x.double().tolist()]
    assert y.double().tolist() == wanted


def test_two_of_four():
    x = torch.tensor([[4.0, -3.0, 2.0, 1.0, 0.0, 0.0, -5.0, math.nan]])
    y = sparsify(x, parse_sparsifier("2:4"))
    assert torch.equal(y.nan_to_num(9), torch.tensor([[4.0, -3.0, 0, 0, 0, 0, -5.0, 9.0]]))


def test_random_fractions():
    torch.manual_seed(0)
    x = torch.ones(200, 100)
    assert int(sparsify(x, parse_sparsifier("random:0")).sum()) == x.numel()
    assert int(sparsify(x, parse_sparsifier("random:1")).sum()) == 0
    # Ten standard deviations of a binomial count around its mean.
    kept = int(sparsify(x, parse_sparsifier("random:0.7")).sum())
    assert abs(kept - 6000) < 10 * math.sqrt(20000 * 0.3 * 0.7)


@pytest.mark.parametrize("text", BUILT_IN)
def test_built_in_sparsifiers_conform(text):
    gossamer.testing.check_sparsifier(text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("threshold", "takes 1 numbers"),
        ("threshold:a", "could not convert"),
        ("threshold:-1", "from 0"),
        ("threshold:nan", "from 0"),
        ("fraction:1.5", r"\[0, 1\]"),
        ("per-block:0.5:0", "from 1"),
        ("per-block:0.5:2.5", "from 1"),
        ("block:4x4", "no density of its own"),
        ("tresh:0.1", "register.sparsifier"),
        (7, "expected text"),
    ],
)
def test_bad_texts(text, part):
    with pytest.raises(InputError, match=part):
        parse_sparsifier(text)


def test_integers_and_shapes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="floating point"):
        sparsify(torch.ones(4, dtype=torch.int64), parse_sparsifier("threshold:1"))
    with pytest.raises(InputError, match="divisible by 8"):
        sparsify(torch.ones(4, 12), parse_sparsifier("per-block:0.5:8"))
    with pytest.raises(InputError, match="divisible by 4"):
        sparsify(torch.ones(4, 6), parse_sparsifier("2:4"))


@pytest.fixture
def plug_in():
    """Registers a sparsifier for one test."""
    before = SPARSIFIERS.names()
    yield gossamer.register.sparsifier
    for name in set(SPARSIFIERS.names()) - set(before):
        SPARSIFIERS.remove(name)


def test_a_plug_in(plug_in):
    @plug_in("positive", scope="streaming")
    def positive(x, least=0.0):
        return ~(x < least)

    gossamer.testing.check_sparsifier("positive")
    gossamer.testing.check_sparsifier("positive:0.25")
    y = sparsify(torch.tensor([-1.0, 0.2, 3.0]), parse_sparsifier("positive:0.25"))
    assert y.tolist() == [0, 0, 3]
    with pytest.raises(RegistryError, match="already"):
        plug_in("positive")(positive)
    with pytest.raises(InputError, match="0 to 1 numbers"):
        parse_sparsifier("positive:1:2")


@pytest.mark.parametrize(
    ("function", "scope", "part"),
    [
        (lambda x: x[..., :1] > 0, "streaming", "changes shapes"),
        (lambda x: None, "streaming", "changes shapes"),
        (lambda x: x.abs(), "streaming", "expected bool"),
        (lambda x: x.abs() >= 0.5, "streaming", "NaN became zero"),
        (lambda x: ~(x < x.nan_to_num().mean()), "streaming", "treats a part"),
        (lambda x: torch.rand_like(x) < 0.5, "streaming", "two calls differ"),
        (lambda x: x.zero_() == 0, "streaming", "changed its input"),
    ],
)
def test_broken_plug_ins_are_found(plug_in, function, scope, part):
    plug_in("broken", scope=scope)(function)
    with pytest.raises(InputError, match=part):
        gossamer.testing.check_sparsifier("broken")


def test_a_sparsifier_that_changes_shapes_is_told_in_one_sentence(plug_in):
    plug_in("halves")(lambda x: x[..., ::2] > 0)
    with pytest.raises(InputError) as caught:
        sparsify(torch.ones(3, 8), parse_sparsifier("halves"))
    assert str(caught.value) == (
        "sparsifier halves changes shapes: its mask for a tensor [3, 8] is [3, 4]; a sparsifier"
        " says for each entry whether it stays."
    )


def test_gradients_masked_passed_or_sparse():
    x = torch.tensor([0.1, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    grad = torch.tensor([5.0, -6.0, 7.0], dtype=torch.float64)
    threshold, fraction = parse_sparsifier("threshold:1"), parse_sparsifier("fraction:0.6")
    y = sparsify(x, threshold)
    assert torch.autograd.grad(y, x, grad)[0].tolist() == [0, -6, 7]
    y = pass_gradient_through(x, sparsify(x, threshold))
    assert y.tolist() == [0, -2, 3]
    assert torch.autograd.grad(y, x, grad)[0].tolist() == [5, -6, 7]
    y = sparsify_gradient(x, fraction)
    assert y.tolist() == x.tolist()
    assert torch.autograd.grad(y, x, grad)[0].tolist() == [0, 0, 7]
