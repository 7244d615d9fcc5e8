import functools

import pytest
import torch
import torch.nn.functional as F

import gossamer
from gossamer.errors import DenseFallback, KernelError, KernelMissing, RegistryError
from gossamer.formats import FORMATS, pack, unpack
from gossamer.formats.bitmask import Bitmask
from gossamer.ops.dispatch import (
    LINEAR,
    built_in_kernels,
    fallbacks,
    prepare,
    report_fallback,
)
from gossamer.ops.kernels import available_kernels
from gossamer.patterns import NM, NMG, VNM, Block, Unstructured
from gossamer.testing import check_op
from gossamer.testing.ops import check_kernel


@pytest.mark.parametrize("name", ["bitmask", "csr", "nm", "vnm", "nmg", "block"])
def test_built_in_linear_of_every_format(name):
    check_op("linear", name)


# Patterns with remainders of every tile that the structured kernels have.
STRUCTURED = (
    Unstructured(),
    *(NM(2, 4), NM(2, 6), NM(2, 8), NM(4, 16), NM(3, 32)),
    *(VNM(16, 8), VNM(64, 40)),
    *(NMG(1, 4, 3), NMG(2, 4, 4), NMG(2, 8, 2), NMG(3, 5, 2), NMG(4, 8, 1)),
    *(Block(2, 3), Block(4, 4), Block(6, 2), Block(8, 1), Block(16, 1), Block(16, 16)),
)


@functools.cache
def example(pattern):
    scores = torch.rand(pattern.padded_shape((33, 97)))
    return pack(scores, pattern.project(scores, pattern.fixed_density or 0.3), pattern)


EXACT = [kernel for kernel in built_in_kernels("linear") if kernel.precision == "fp32"]


@pytest.mark.parametrize("kernels", available_kernels())
@pytest.mark.parametrize("kernel", EXACT, ids=lambda kernel: kernel.name)
def test_built_in_kernels_keep_the_contract(kernel, kernels, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
    check_kernel(kernel, [p for p in STRUCTURED if kernel.accepts(example(p))])


@pytest.fixture
def plug_in():
    class Copy(Bitmask):
        name = "copy-of-bitmask"

    gossamer.register.format("copy-of-bitmask", Copy())
    yield "copy-of-bitmask"
    FORMATS.remove("copy-of-bitmask")
    LINEAR.remove("copy-of-bitmask")


def sparse_weight(name):
    weight = torch.randn(6, 8)
    mask = torch.rand(6, 8) < 0.5
    return pack(weight, mask, Unstructured(), name), weight * mask


def test_format_without_kernel_runs_dense_and_is_counted(plug_in):
    sparse, weight = sparse_weight(plug_in)
    prepared = prepare("linear", sparse, "layers.0")
    x = torch.randn(3, 8)
    assert prepared.kernel == "dense"
    assert torch.equal(prepared.run(x, None, "relu"), F.relu(F.linear(x, weight)))
    assert fallbacks()["layers.0: no linear kernel for format 'copy-of-bitmask'"] >= 1


def test_format_without_kernel_is_an_error_under_strict_with_the_stub(plug_in):
    sparse, _ = sparse_weight(plug_in)
    with gossamer.strict(), pytest.raises(KernelMissing) as error:
        prepare("linear", sparse, "layers.0")
    assert '@gossamer.register.op("linear", "copy-of-bitmask")' in str(error.value)
    assert "layers.0" in str(error.value)
    prepare("linear", sparse)  # strict ends with its context


def test_strict_turns_other_fallbacks_into_errors():
    with gossamer.strict(), pytest.raises(DenseFallback, match="conv1"):
        report_fallback("conv1", "no kernel")


def test_registered_op_is_used_and_checked(plug_in):
    @gossamer.register.op("linear", plug_in)
    def prepare_dense(sparse):
        weight, _ = unpack(sparse)
        return lambda x, bias, activation: (
            getattr(F, activation)(F.linear(x, weight, bias))
            if (activation != "none")
            else F.linear(x, weight, bias)
        )

    sparse, _ = sparse_weight(plug_in)
    with gossamer.strict():
        assert prepare("linear", sparse).kernel == "linear/copy-of-bitmask"
    check_op("linear", plug_in)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda x, w, b: F.linear(x.bfloat16(), w.bfloat16()).float(), "wrong by"),
        (lambda x, w, b: F.linear(x, w), "wrong by"),
        (lambda x, w, b: F.linear(x, w, b).double(), "expected float32"),
        (lambda x, w, b: F.linear(x, w, b).flatten(), "expected float32"),
        (lambda x, w, b: F.linear(x.mul_(1.5), w, b), "changed its input"),
    ],
    ids=["precision", "no bias", "dtype", "shape", "in place"],
)
def test_wrong_ops_are_caught(plug_in, fault, message):
    gossamer.register.op("linear", plug_in)(
        lambda sparse: lambda x, bias, activation: fault(x, unpack(sparse)[0], bias)
    )
    with pytest.raises((KernelError, RuntimeError), match=message):
        check_op("linear", plug_in)


def test_unknown_names_are_refused():
    with pytest.raises(RegistryError, match="no operation"):
        check_op("conv9", "bitmask")
    with pytest.raises(RegistryError, match="bitmask"):
        check_op("linear", "bitmsk")
    with pytest.raises(RegistryError, match="already"):
        gossamer.register.op("linear", "bitmask")(lambda sparse: None)
