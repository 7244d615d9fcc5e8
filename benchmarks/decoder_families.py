# SPDX-License-Identifier: Apache-2.0
"""Decoders of several families: tokens per second, and what is not spent in products.

    python benchmarks/decoder_families.py [--threads 1] [--rounds 5] [--json]

Random weights in the shapes of SmolLM2-135M, Qwen3-0.6B, Gemma3-270M and Llama-3.2-1B, dense in
int4 and half of them zeros in int8. Layers are one and the same in fp32, and packed each into
memory of its own. All contenders take turns; a figure is the best CPU time of one token after 16
others, and in brackets the median of the rounds.

The share outside of products is 1 minus the time of all products of a token, run alone in the same
order over the same packed weights, less what a call from Python costs: a product of 16 x 16.
"""

import statistics

import torch
import transformers
from torch import nn

from gossamer.cli.shell import table
from gossamer.formats import SparseMatrix
from gossamer.ops.linear.few import pack_few
from gossamer.running.decoder import DecoderEngine
from support.decoders import timed
from support.options import give, machine, parser, progress

CONTEXT, TOKEN, BEFORE, NEW = 1024, 500, 16, 6
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
# Class, layers that are drawn, how often they are repeated, settings.
SHAPES = {
    "SmolLM2-135M": ("LlamaForCausalLM", 1, 30, {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_attention_heads": 9, "num_key_value_heads": 3}),
    "Qwen3-0.6B": ("Qwen3ForCausalLM", 1, 28, {
        "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}),
    "Gemma3-270M": ("Gemma3ForCausalLM", 6, 3, {
        "vocab_size": 262144, "hidden_size": 640, "intermediate_size": 2048,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
        "query_pre_attn_scalar": 256, "sliding_window": 512}),
    "Llama-3.2-1B": ("LlamaForCausalLM", 1, 16, {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_attention_heads": 32, "num_key_value_heads": 8, "rope_parameters": LLAMA3}),
}  # fmt: skip
KINDS = {"dense int4": (0.0, "int4"), "50 % int8": (0.5, "int8")}


def make(name, sparsity):
    """A model whose layers repeat."""
    kind, drawn, repeats, settings = SHAPES[name]
    kind = getattr(transformers, kind)
    torch.manual_seed(0)
    fields = {"max_position_embeddings": CONTEXT, "tie_word_embeddings": True, **settings}
    model = kind(kind.config_class(num_hidden_layers=drawn, **fields)).eval()
    with torch.no_grad():
        for linear in model.model.layers.modules():
            if isinstance(linear, nn.Linear):
                linear.weight.mul_(torch.rand_like(linear.weight) >= sparsity)
    model.model.layers = nn.ModuleList([*model.model.layers] * repeats)
    return model


class Contender:
    """A packed model, its tokens and its products alone."""

    def __init__(self, name, kind):
        self.name, self.kind = name, kind
        sparsity, dtype = KINDS[kind]
        self.engine = DecoderEngine(make(name, sparsity), dtype, context=CONTEXT)
        self._session = self.engine.session()
        self._session.prompt([TOKEN] * BEFORE)
        products = [layer.few for layer in self.engine._products]
        self._runs = [(run, torch.randn(1, run.shape[1])) for run in products]
        small = pack_few(SparseMatrix.from_dense(torch.ones(16, 16)))
        self._call = (small, torch.randn(1, 16))
        self.tokens, self.products = [], []

    def turn(self):
        """CPU seconds of a token, and of its products."""
        self._session.prompt([TOKEN] * BEFORE)
        self.tokens.append(min(timed(lambda: self._session.append(TOKEN))[1] for _ in range(NEW)))
        calls = self._all([self._call] * len(self._runs))
        self.products.append(self._all(self._runs) - calls)

    def _all(self, runs):
        def run_all():
            for run, x in runs:
                run(x)

        return min(timed(run_all)[1] for _ in range(NEW))


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    contenders = []
    for name in SHAPES:
        for kind in KINDS:
            progress(f"packing {name}, {kind}")
            contenders.append(Contender(name, kind))
    for _ in range(given.rounds + 1):
        for one in contenders:
            one.turn()
    shown = table("model", "weights", ">tokens/s", ">MB/token", ">ms of a token", ">ms outside",
                  ">outside of products")  # fmt: skip
    document = {"machine": machine(), "threads": given.threads, "models": {}}
    for one in contenders:
        tokens, products = one.tokens[1:], one.products[1:]  # the first turn warms up
        shares = [1 - p / t for t, p in zip(tokens, products, strict=True)]
        share, best = statistics.median(shares), min(tokens)
        size = one.engine.size.bytes_per_token
        document["models"][f"{one.name}, {one.kind}"] = {
            "tokens_per_second": 1 / best, "median": 1 / statistics.median(tokens),
            "bytes_per_token": size, "outside": share, "outside_range": [min(shares), max(shares)],
        }  # fmt: skip
        shown.add_row(
            one.name, one.kind, f"{1 / best:.0f} ({1 / statistics.median(tokens):.0f})",
            f"{size / 1e6:.0f}", f"{best * 1e3:.2f}", f"{share * best * 1e3:.2f}",
            f"{share:.1%} ({min(shares):.1%} to {max(shares):.1%})",
        )  # fmt: skip
    give(given, document, shown, "One thread, CPU time; best (median of the rounds).")


if __name__ == "__main__":
    main()
