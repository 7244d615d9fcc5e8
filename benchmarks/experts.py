# SPDX-License-Identifier: Apache-2.0
"""One mixture of experts: ours, transformers' and a dense block of equal active size, in one run.

    python benchmarks/experts.py [--tokens 1 16 256 1024] [--rounds 15] [--dtypes fp32 bf16]
        [--only forward|training]

Hidden size 576; 8 experts of 1536, one for each token, and 64 experts of 192, eight for each. All
are SwiGLU without biases. The mixture is Qwen3-MoE's block of transformers with its router
(`grouped_mm`, the fastest of its ways on a CPU) and the same block after `adopt_experts`: weights,
router and results are the same, which is checked. `sparse` has 80 % zeros in every expert and is
compiled, `int8` too, in 8 bits; `int8 dense` has no zeros. The dense block has the weights that one
token uses. Contenders run in turn on one thread, the least CPU time counts; figures are times over
that of the dense block, so less is better.

More than one token reads more than one expert: `read` is how many times the weights of the dense
block a mixture has to read for the tokens of this run, below which no implementation can be where
reading bounds the time. `of the bound` is the time to read the weights of the experts that have
tokens once (in training to read them twice and write their gradients once), at the rate at which
torch reads and writes so many bytes in this run, over ours: 100 % would be nothing but that.
"""

import argparse
import copy
import json
import statistics
import time

import torch
from torch import nn
from torch.nn.functional import silu
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

import gossamer
from gossamer.nn.moe import adopt_experts

HIDDEN = 576
SHAPES = ((8, 1, 1536), (64, 8, 192))
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Dense(nn.Module):
    """SwiGLU with so many inner units."""

    def __init__(self, inner):
        super().__init__()
        self.up = nn.Linear(HIDDEN, 2 * inner, bias=False)
        self.down = nn.Linear(inner, HIDDEN, bias=False)

    def forward(self, x):
        """As in Llama."""
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(silu(gate) * up)


def blocks(experts, top_k, inner, dtype):
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        hidden_size=HIDDEN,
        num_experts=experts,
        num_experts_per_tok=top_k,
        moe_intermediate_size=inner,
        norm_topk_prob=True,
    )
    config._experts_implementation = "grouped_mm"
    peer = Qwen3MoeSparseMoeBlock(config)
    for parameter in peer.parameters():
        nn.init.normal_(parameter, std=0.02)
    nn.init.normal_(peer.gate.weight, std=1.0)  # so that tokens differ in what they choose
    peer = nn.ModuleDict({"block": peer.to(dtype)})
    ours = adopt_experts(copy.deepcopy(peer))
    return Dense(top_k * inner).to(dtype), peer["block"], ours["block"]


def compiled(ours, sparsity, precision, tokens):
    model = nn.ModuleDict({"block": copy.deepcopy(ours).float()})
    gossamer.sparsify(model, sparsity=sparsity)
    # Tokens of one expert: both shapes send an eighth of all to each.
    return gossamer.compile(model, tokens=(1, max(1, tokens // 8)), precision=precision)["block"]


def bound(num_bytes, rounds, trains):
    """Least milliseconds for the memory that a pass needs."""
    memory = torch.ones(num_bytes // 4)
    calls = {"read": memory.sum, "write": lambda: memory.fill_(1.0)}
    times = {name: ms for name, (ms, _) in timed(calls, rounds, 1).items()}
    return 2 * times["read"] + times["write"] if trains else times["read"]


def output(made):
    return made[0] if isinstance(made, tuple) else made


def forward(block, x):
    with torch.inference_mode():
        return output(block(x))


def training(block, x, seed):
    for parameter in block.parameters():
        parameter.grad = None
    output(block(x)).backward(seed)


def timed(calls, rounds, repeats):
    """The least CPU milliseconds of each, and the median over the least, in turn."""
    found = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.process_time()
            for _ in range(repeats):
                call()
            found[name].append((time.process_time() - began) / repeats * 1e3)
    return {name: (min(t), statistics.median(t) / min(t)) for name, t in found.items()}


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tokens", type=int, nargs="+", default=[1, 16, 256, 1024])
    options.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=DTYPES)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--only", choices=("forward", "training"))
    options.add_argument("--json", action="store_true", help="one object per line, no table")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    if not arguments.json:
        print(
            "| experts | dtype | tokens | pass | read | dense ms | transformers | ours |"
            " of the bound | others |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
    for experts, top_k, inner in SHAPES:
        for name in arguments.dtypes:
            dense, peer, ours = blocks(experts, top_k, inner, DTYPES[name])
            for tokens in arguments.tokens:
                x = torch.randn(1, tokens, HIDDEN, generator=torch.Generator().manual_seed(1))
                x = x.to(DTYPES[name])
                measure(arguments, (experts, top_k, name), (dense, peer, ours), x)


def measure(arguments, labels, made, x):
    (experts, top_k, name), (dense, peer, ours) = labels, made
    tokens = x.shape[1]
    wanted, found = forward(peer, x).float(), forward(ours, x).float()
    error = float((wanted - found).abs().max() / wanted.abs().max())
    if error > (3e-2 if name == "bf16" else 1e-5):
        raise SystemExit(f"{labels}, {tokens} tokens: results differ by {error:.1e}.")
    chosen = ours.gate(x.view(-1, HIDDEN))[2]
    read = len(chosen.unique()) / top_k
    repeats = max(1, 64 // tokens)
    passes = [arguments.only] if arguments.only else ["forward", "training"]
    for kind in passes:
        if kind == "forward":
            contenders = {"dense": dense, "transformers": peer, "ours": ours}
            if name == "fp32":
                contenders["80 % zeros"] = compiled(ours, 0.8, "fp32", tokens)
                contenders["80 % zeros, int8"] = compiled(ours, 0.8, "int8", tokens)
                contenders["int8 dense"] = compiled(ours, 0.0, "int8", tokens)
            calls = {key: lambda b=block: forward(b, x) for key, block in contenders.items()}
        else:
            seed = torch.randn_like(x)
            for block in (dense, peer, ours):
                block.train()
            contenders = {"dense": dense, "transformers": peer, "ours": ours}
            calls = {
                key: lambda b=block, g=seed: training(b, x, g) for key, block in contenders.items()
            }
        times = timed(calls, arguments.rounds, repeats)
        base = times["dense"][0]
        needed = round(read * sum(p.numel() * p.element_size() for p in dense.parameters()))
        least = bound(needed, arguments.rounds, kind == "training")
        if arguments.json:
            facts = {"experts": experts, "top_k": top_k, "dtype": name, "tokens": tokens}
            ms = {key: value for key, (value, _) in times.items()}
            facts |= {"pass": kind, "read": read, "bound_ms": least, "ms": ms}
            print(json.dumps(facts), flush=True)
            continue
        others = ", ".join(
            f"{key} {ms / base:.2f}"
            for key, (ms, _) in times.items()
            if key not in ("dense", "transformers", "ours")
        )
        spread = max(spread for _, spread in times.values())
        print(
            f"| {experts} top-{top_k} | {name} | {tokens} | {kind} | {read:.1f} | {base:.3f} |"
            f" {times['transformers'][0] / base:.2f} | {times['ours'][0] / base:.2f} |"
            f" {least / times['ours'][0]:.0%} | {others or '-'} (spread {spread:.2f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
