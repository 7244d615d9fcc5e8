# SPDX-License-Identifier: Apache-2.0
"""An install without native module: what has a form in torch works, the rest names what misses."""

import os
import subprocess
import sys
import textwrap

import pytest

HIDE = """
import importlib.abc, sys

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "gossamer.ops._native":
            raise {error}

sys.meta_path.insert(0, Hide())
"""
MISSING = 'ModuleNotFoundError("No module named " + name, name=name)'


def run(code, error=MISSING, expect=0, **env):
    script = HIDE.format(error=error) + textwrap.dedent(code)
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env or None, timeout=240
    )
    assert result.returncode == expect, result.stderr
    return result


def test_a_model_is_pruned_trained_saved_and_compiled(tmp_path):
    result = run(
        f"""
        import torch, gossamer
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 64),
            torch.nn.ReLU(), torch.nn.Linear(64, 10),
        )
        x = torch.randn(4, 3, 8, 8)
        gossamer.sparsify(model, sparsity=0.5)
        dense = torch.nn.Linear(64, 10)
        with torch.no_grad():
            dense.weight.copy_(model[4].weight * model[4].mask())
            dense.bias.copy_(model[4].bias)
        gossamer.compact(model)
        assert torch.equal(model[4](x.flatten()[:64]), dense(x.flatten()[:64]))
        model(x).square().sum().backward()
        dense(model[:4](x)).square().sum().backward()
        torch.testing.assert_close(model[4].values.grad, dense.weight.grad[model[4].mask()])
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer.step()
        gossamer.save(model, {str(tmp_path / "m")!r})
        again = gossamer.load({str(tmp_path / "m")!r}, model=None)
        fast = gossamer.compile(again, tokens=4)
        torch.testing.assert_close(fast(x), model(x))
        rows = gossamer.explain(fast)
        assert {{row.kernel for row in rows}} == {{"dense"}}, rows
        gossamer.compile(again, tokens=4)
        """
    )
    assert result.stderr.count("gossamer has no kernels here") == 1, result.stderr


def test_lookups_attention_experts_and_moments_run_in_torch():
    run(
        """
        import torch, gossamer
        from gossamer.nn.moe import MoE
        from gossamer.training.optim import AdamW
        torch.manual_seed(0)
        from gossamer.training.optim.tables import TableAdagrad
        stock = torch.nn.EmbeddingBag(50, 8, mode="sum")
        bag = gossamer.nn.EmbeddingBag.from_dense(stock, bits=8, granularity="row")
        moved = TableAdagrad([bag.weight], lr=0.05)
        ids = torch.tensor([1, 2, 2, 49])
        y = bag(ids, torch.tensor([0, 2]))
        torch.testing.assert_close(y, stock(ids, torch.tensor([0, 2])), atol=0.1, rtol=0)
        y.sum().backward()
        try:
            moved.step()
        except gossamer.errors.KernelError as error:
            assert "without the native module" in str(error), error
        else:
            raise SystemExit("no error")
        q = torch.randn(1, 2, 40, 16, requires_grad=True)
        y = gossamer.attention(q, q, q, pattern="window:8", causal=True)
        i = torch.arange(40)
        seen = (i[:, None] >= i) & (i[:, None] - i < 8)
        want = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=seen)
        torch.testing.assert_close(y, want)
        y.sum().backward()
        layer = MoE(8, 16, 4)
        layer(torch.randn(5, 8)).sum().backward()
        layer = torch.nn.Linear(300, 4)
        optimizer = AdamW(layer.parameters(), moments="8bit")
        layer(torch.ones(1, 300)).sum().backward()
        optimizer.step()
        try:
            gossamer.graph.Graph.of(torch.tensor([[0], [1]]), num_nodes=2)
        except gossamer.errors.KernelError as error:
            assert "was built without the native module" in str(error), error
            assert "pip install --force-reinstall gossamer" in str(error), error
        else:
            raise SystemExit("no error")
        """
    )


def test_a_module_that_cannot_be_loaded_gives_its_reason_and_no_kernels_are_forced():
    result = run(
        """
        from gossamer.ops.kernels import active_kernels
        active_kernels()
        """,
        error='ImportError("libgomp.so.1: cannot open shared object file")',
        expect=1,
        **{**os.environ, "GOSSAMER_KERNELS": "avx2"},
    )
    reason = "the native module of this install cannot be loaded (libgomp.so.1: cannot open"
    assert f"GOSSAMER_KERNELS=avx2: {reason}" in result.stderr


@pytest.mark.parametrize("command", [["doctor", "--json"], ["--help"]])
def test_commands_answer(command):
    expect = 0 if "--help" in command else 4  # a resource is missing here, where a wheel has it
    run(f"import gossamer.cli.main as m; sys.exit(m.main({command!r}))", expect=expect)
