"""Kernels for formats of intermediate tensors, and what happens where there is none."""

import pytest
import torch
import torch.nn.functional as F

import gossamer
from gossamer.errors import DenseFallback, InputError, KernelError, KernelMissing, RegistryError
from gossamer.ops.fallback import fallbacks
from gossamer.ops.operators import CompressedTensor, Plan, TensorFormat, run_operator
from gossamer.ops.operators.compressed import TENSOR_FORMATS
from gossamer.ops.operators.kernels import BACKWARD, FORWARD, kernel_name
from gossamer.ops.operators.table import _FUNCTIONS, _NAMES
from gossamer.ops.sparsifiers import parse_sparsifier

CSR = TENSOR_FORMATS.get("csr")
KEEP_ALL = parse_sparsifier("keep-all")


def half_zeros(*shape, dtype=torch.float32):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)
    return torch.where(x.abs() < 0.7, 0.0, x)


def compressed(x):
    return CompressedTensor.of(x, x.detach() != 0, CSR)


@pytest.fixture
def forgotten():
    """Takes back what a test registers."""
    tables = (FORWARD, BACKWARD, _FUNCTIONS, _NAMES)
    before, formats = [dict(table) for table in tables], TENSOR_FORMATS.names()
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)
    for name in set(TENSOR_FORMATS.names()) - set(formats):
        TENSOR_FORMATS.remove(name)


@pytest.mark.parametrize("key", list(FORWARD), ids=kernel_name)
def test_built_in_kernels_conform(key):
    operator, name = kernel_name(key).split(" ")
    gossamer.testing.check_op(operator, name)


@pytest.mark.parametrize("shape", [(0,), (3,), (0, 4), (4, 0), (1, 1), (5, 7), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("fill", ["half", "zeros", "full"])
def test_rows_hold_what_is_not_zero(shape, fill):
    x = {"half": half_zeros(*shape), "zeros": torch.zeros(shape), "full": torch.ones(shape)}[fill]
    held = compressed(x)
    assert torch.equal(held.dense(), x)
    assert held.shape == x.shape
    assert held.dtype is x.dtype
    rows = torch.Size(shape[:-1]).numel()
    assert held.nbytes_held == 8 * int((x != 0).sum()) + 4 * (rows + 1)


def test_gradients_go_into_held_entries_only():
    x = half_zeros(4, 6).requires_grad_()
    compressed(x).dense().sum().backward()
    assert torch.equal(x.grad, (x != 0).float())


def test_zeros_are_made_slice_by_slice():
    x, weight = half_zeros(700, 64), half_zeros(256, 64) + 1
    plan = Plan("here", parse_sparsifier("threshold:12"), "csr")
    y = run_operator("linear", F.linear, (x, weight), {}, plan)
    dense = F.linear(x, weight)
    assert torch.equal(y.dense() != 0, dense.abs() >= 12)
    assert torch.allclose(y.dense(), torch.where(dense.abs() < 12, 0.0, dense), atol=1e-4)
    # A block that is higher than a slice is not cut.
    plan = Plan("here", parse_sparsifier("nmg:2:4:4"), "csr")
    y = run_operator("gelu", F.gelu, (half_zeros(4000, 48) + 3,), {}, plan)
    assert int((y.dense() != 0).sum()) == 4000 * 48 // 2


def test_what_has_no_kernel_is_dense_and_counted():
    left, right = compressed(half_zeros(4, 4)), compressed(half_zeros(4, 4) + 1)
    before = sum(fallbacks().values())
    y = torch.matmul(left, right)
    assert torch.equal(y, left.dense() @ right.dense())
    assert sum(fallbacks().values()) == before + 1
    assert any("matmul csr,csr->dense" in reason for reason in fallbacks())
    with gossamer.strict(), pytest.raises(KernelMissing, match=r"register.forward\('matmul'"):
        torch.matmul(left, right)
    with gossamer.strict(), pytest.raises(DenseFallback, match="flip"):
        torch.flip(left, (0,))
    with gossamer.strict(), pytest.raises(KernelMissing, match="cat csr,csr->dense"):
        torch.cat([left, right])


def test_fallbacks_have_gradients():
    x = half_zeros(4, 4).requires_grad_()
    (torch.flip(compressed(x), (0,)) * 3).sum().backward()
    assert torch.equal(x.grad, 3.0 * (x != 0))


def test_a_missing_backward_is_told_at_the_forward(forgotten):
    x = half_zeros(3, 6).requires_grad_()
    weight = half_zeros(5, 6).requires_grad_()

    @gossamer.register.forward("sub", inputs=("csr",))
    def sub(call, x, other):
        return x.dense() - other

    with gossamer.strict(), pytest.raises(KernelMissing, match=r"register.backward\('sub'"):
        torch.sub(compressed(x), weight[:3])
    before = sum(fallbacks().values())
    torch.sub(compressed(x), weight[:3]).square().sum().backward()
    assert sum(fallbacks().values()) == before + 1
    difference = (x - weight[:3]).detach()
    assert torch.allclose(x.grad, 2 * difference * (x.detach() != 0))
    assert torch.allclose(weight.grad[:3], -2 * difference)


def test_a_change_of_a_saved_tensor_is_found():
    x, weight = half_zeros(3, 6).requires_grad_(), half_zeros(5, 6).requires_grad_()
    y = F.linear(compressed(x), weight)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_compressed_tensors_cannot_be_changed_in_place():
    x = compressed(half_zeros(4, 4))
    with pytest.raises(InputError, match="in place"):
        x.add_(1)
    with pytest.raises(InputError, match="in place"):
        x += 1


def test_what_the_format_cannot_hold_stays_dense_and_is_counted():
    plan = Plan("half precision", KEEP_ALL, "csr")
    x = half_zeros(4, 4).bfloat16()
    y = run_operator("gelu", F.gelu, (x,), {}, plan)
    assert type(y) is torch.Tensor
    assert any("half precision: csr cannot hold" in reason for reason in fallbacks())
    with gossamer.strict(), pytest.raises((DenseFallback, KernelMissing)):
        run_operator("gelu", F.gelu, (x,), {}, plan)


def test_an_operator_and_a_format_of_ones_own(forgotten):
    class Listed(TensorFormat):
        """Flat places and values."""

        name = "listed"

        def compress(self, y, mask):
            places = mask.reshape(-1).nonzero().flatten()
            return {"values": y.reshape(-1)[places], "places": places}

        def dense(self, parts, shape):
            zeros = parts["values"].new_zeros(shape.numel())
            return zeros.index_put((parts["places"],), parts["values"]).view(shape)

    gossamer.register.format("listed", Listed())
    gossamer.register.operator("abs", torch.abs, torch.Tensor.abs)

    @gossamer.register.forward("abs", inputs=("listed",), output="listed")
    def absolute(call, x):
        call.saved = (x,)
        return x.with_values(x.parts["values"].abs())

    @gossamer.register.backward("abs", inputs=("listed",), gradient="listed")
    def absolute_backward(call, gradient):
        return (gradient.parts["values"] * call.saved[0].parts["values"].sign(),)

    cases = [(torch.abs, (half_zeros(3, 5),), {}), (torch.abs, (half_zeros(0, 5),), {})]
    gossamer.testing.check_op("abs", "listed->listed", cases=cases)
    with pytest.raises(KernelError, match="none of the cases"):
        gossamer.testing.check_op("abs", "listed->listed")
    x = half_zeros(3, 5)
    held = CompressedTensor.of(x, x != 0, TENSOR_FORMATS.get("listed"))
    with gossamer.strict():
        assert torch.equal(torch.abs(held).dense(), x.abs())


@pytest.mark.parametrize("fault", ["forward", "backward"])
def test_a_wrong_kernel_is_found(forgotten, fault):
    @gossamer.register.forward("sigmoid", inputs=("csr",))
    def sigmoid(call, x):
        call.saved = (x,)
        return x.dense() if fault == "forward" else torch.sigmoid(x.dense())

    @gossamer.register.backward("sigmoid", inputs=("csr",))
    def sigmoid_backward(call, gradient):
        (x,) = call.saved
        return (x.parts["values"],)

    cases = [(torch.sigmoid, (half_zeros(3, 5),), {})]
    with pytest.raises(KernelError, match=r"output|gradient"):
        gossamer.testing.check_op("sigmoid", "csr->dense", cases=cases)


def test_bad_registrations(forgotten):
    with pytest.raises(RegistryError, match="no operator is called 'softmin'"):
        gossamer.register.forward("softmin", inputs=("csr",))
    with pytest.raises(RegistryError, match="already"):
        gossamer.register.forward("linear", inputs=("csr", "dense"))(lambda call: None)
    with pytest.raises(RegistryError, match="'linear' already"):
        gossamer.register.operator("mine", F.linear)
    with pytest.raises(RegistryError, match="no kernel linear nm->dense"):
        gossamer.testing.check_op("linear", "nm->dense")
