import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.errors import DenseFallback, KernelError, KernelMissing, RegistryError
from gossamer.ops import Problem, kernel_list, kernels_for, report_missing
from gossamer.ops.fallback import fallbacks, report_fallback
from gossamer.ops.kernels import available_kernels
from gossamer.patterns import NM, NMG, VNM, Block, Unstructured
from gossamer.testing import check_op
from gossamer.testing.formats import SAMPLE_PATTERNS

# Patterns with remainders of every tile that the structured kernels have.
STRUCTURED = (
    Unstructured(),
    *(NM(2, 4), NM(2, 6), NM(2, 8), NM(4, 16), NM(3, 32)),
    *(VNM(16, 8), VNM(64, 40)),
    *(NMG(1, 4, 3), NMG(2, 4, 4), NMG(2, 8, 2), NMG(3, 5, 2), NMG(4, 8, 1)),
    *(Block(2, 3), Block(4, 4), Block(6, 2), Block(8, 1), Block(16, 1), Block(16, 16)),
)


EXACT = [kernel for kernel in kernel_list("linear") if kernel.precision == "fp32"]


@pytest.mark.parametrize("kernels", available_kernels())
@pytest.mark.parametrize("kernel", EXACT, ids=lambda kernel: kernel.name)
def test_built_in_kernels_keep_the_contract(kernel, kernels, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
    check_op("linear", kernel.name, (*STRUCTURED, *SAMPLE_PATTERNS))


@pytest.fixture
def plug_in():
    yield "mine"
    kernel_list("linear").remove("mine")


def test_weights_without_a_kernel_are_counted():
    report_missing("linear", "mine:3", "layers.0")
    assert fallbacks()["layers.0: no linear kernel for pattern 'mine:3'"] >= 1


def test_weights_without_a_kernel_are_an_error_under_strict_with_the_stub():
    with gossamer.strict(), pytest.raises(KernelMissing) as error:
        report_missing("linear", "mine:3", "layers.0")
    assert '@gossamer.register.op("linear", "mine")' in str(error.value)
    assert "layers.0" in str(error.value)
    report_missing("linear", "mine:3", "layers.0")  # strict ends with its context


def test_strict_turns_other_fallbacks_into_errors():
    with gossamer.strict(), pytest.raises(DenseFallback, match="conv1"):
        report_fallback("conv1", "no kernel")


def test_registered_op_is_used_and_checked(plug_in):
    @gossamer.register.op("linear", plug_in, lambda problem: problem.matrix.pattern == NM(2, 4))
    def pack_dense(matrix):
        weight = matrix.dense()
        return lambda x, bias, activation: (
            getattr(F, activation)(F.linear(x, weight, bias))
            if (activation != "none")
            else F.linear(x, weight, bias)
        )

    check_op("linear", plug_in)
    model = nn.Sequential(nn.Linear(64, 32))
    gossamer.sparsify(model, sparsity=0.5, pattern="2:4")
    fast = gossamer.compile(model, tokens=(4,), kernel=plug_in)
    assert [row.kernel for row in gossamer.explain(fast)] == [plug_in]
    x = torch.randn(4, 64)
    torch.testing.assert_close(fast(x), model(x))
    gossamer.sparsify(model := nn.Sequential(nn.Linear(64, 32)), sparsity=0.5)
    assert not any(k.name == plug_in for k in kernels_for("linear", Problem(model[0].matrix())))


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
        lambda matrix: lambda x, bias, activation: fault(x, matrix.dense(), bias)
    )
    with pytest.raises((KernelError, RuntimeError), match=message):
        check_op("linear", plug_in)


def test_a_kernel_that_accepts_nothing_cannot_be_checked(plug_in):
    gossamer.register.op("linear", plug_in, lambda problem: False)(lambda matrix: None)
    with pytest.raises(KernelError, match="accepts none of"):
        check_op("linear", plug_in)


def test_unknown_names_are_refused():
    with pytest.raises(RegistryError, match="no operation"):
        check_op("conv9", "panel")
    with pytest.raises(RegistryError, match="panel"):
        check_op("linear", "panle")
    with pytest.raises(RegistryError, match="already"):
        gossamer.register.op("linear", "panel")(lambda matrix: None)
