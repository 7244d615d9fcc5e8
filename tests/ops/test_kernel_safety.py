# SPDX-License-Identifier: Apache-2.0
"""What every kernel owes its caller besides the right numbers, whatever its family."""

import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from gossamer.formats import SparseMatrix
from gossamer.ops import Problem, kernel_list
from gossamer.patterns import NM, NMG, VNM, Block, Unstructured

PATTERNS = (
    Unstructured(),
    *(NM(2, 8), NM(4, 16), VNM(16, 8), NMG(2, 4, 4)),
    *(Block(16, 1), Block(4, 4), Block(1, 4)),
)
KERNELS = tuple(kernel_list("linear"))


def problem(weight, mask, pattern):
    return Problem(SparseMatrix.from_dense(weight, mask, pattern))


@pytest.fixture(params=KERNELS, ids=lambda kernel: kernel.name)
def kernel(request):
    return request.param


def weight_for(kernel, shape=(200, 240)):
    """A kernel's own weight in one of the patterns it takes, with its mask."""
    for pattern in PATTERNS:
        padded = pattern.padded_shape(shape)
        weight = torch.randn(padded, generator=torch.Generator().manual_seed(3))
        mask = pattern.project(weight.abs(), pattern.fixed_density or 0.2)
        sparse = problem(weight, mask, pattern)
        if kernel.accepts(sparse):
            return kernel.pack(sparse), mask
    raise AssertionError(f"{kernel.name} takes none of the patterns of this suite")


def test_threads_do_not_change_a_bit(kernel):
    run, mask = weight_for(kernel, (700, 312))
    before = torch.get_num_threads()
    try:
        for tokens in (1, 3, 64, 130):
            x = torch.randn(tokens, mask.shape[1])
            torch.set_num_threads(1)
            one = run(x, None, "none")
            torch.set_num_threads(2)
            assert torch.equal(one, run(x, None, "none"))
    finally:
        torch.set_num_threads(before)


def test_calls_from_eight_threads_agree(kernel):
    run, mask = weight_for(kernel)
    x = torch.randn(70, mask.shape[1])
    wanted, results = run(x, None, "none"), []
    workers = [
        threading.Thread(target=lambda: results.extend(run(x, None, "none") for _ in range(20)))
        for _ in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert len(results) == 160
    assert all(torch.equal(result, wanted) for result in results)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs_in_a_forked_child(kernel):
    run, mask = weight_for(kernel)
    x = torch.randn(130, mask.shape[1])
    torch.set_num_threads(2)
    try:
        wanted = run(x, None, "none").numpy().tobytes()
        child = os.fork()
        if child == 0:
            # Compared without torch, whose own loops wait for ever for the parent's thread pool.
            os._exit(0 if run(x, None, "none").numpy().tobytes() == wanted else 1)
    finally:
        torch.set_num_threads(1)
    assert _exit_status(child) == 0


def _exit_status(child):
    deadline = time.monotonic() + 60
    done, status = os.waitpid(child, os.WNOHANG)
    while not done and time.monotonic() < deadline:
        time.sleep(0.02)
        done, status = os.waitpid(child, os.WNOHANG)
    if not done:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "hung"
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_no_number_stays_in_its_token(kernel, bad):
    run, mask = weight_for(kernel)
    column = int(mask.sum(0).argmax())
    for tokens in (1, 5, 70):
        x = torch.randn(tokens, mask.shape[1])
        clean = run(x, None, "none")
        spoiled = x.clone()
        spoiled[tokens // 2, column] = bad
        y = run(spoiled, None, "none")
        others = torch.arange(tokens) != tokens // 2
        assert torch.equal(y[others], clean[others])
        # Where the weight is kept the result says so; elsewhere a kernel may or may not.
        assert not y[tokens // 2, mask[:, column]].isfinite().any()


@pytest.fixture(scope="module")
def fresh_process():
    """Where only kernels ran: in a heap that others left full of holes, calls touch old pages."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield process


def _growth_of_calls(name, calls):
    kernel = next(kernel for kernel in KERNELS if kernel.name == name)
    run, mask = weight_for(kernel, (20, 24))
    x = torch.randn(3, mask.shape[1])
    for _ in range(200):
        run(x, None, "none")
    before = _resident_bytes()
    for _ in range(calls):
        run(x, None, "none")
    return _resident_bytes() - before


def _resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the system does not tell resident memory"
)


@needs_proc
def test_thousands_of_calls_do_not_grow(kernel, fresh_process):
    assert fresh_process.submit(_growth_of_calls, kernel.name, 5000).result() < 1 << 20


@pytest.mark.slow
@needs_proc
def test_a_hundred_thousand_calls_do_not_grow(kernel, fresh_process):
    assert fresh_process.submit(_growth_of_calls, kernel.name, 100_000).result() < 1 << 20
