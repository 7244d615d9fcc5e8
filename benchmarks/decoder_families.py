# SPDX-License-Identifier: Apache-2.0
"""Decoders of several families: tokens per second, and what is not spent in products.

    python benchmarks/decoder_families.py [--models NAME ...] [--threads 1] [--rounds 5] [--json]
    python benchmarks/decoder_families.py --files DIR --write

Random weights in the shapes of SmolLM2-135M, Qwen3-0.6B, Gemma3-270M and Llama-3.2-1B, dense in
int4 and half of them zeros in int8. Layers are one and the same in fp32, and packed each into
memory of its own. All contenders take turns; a figure is the best CPU time of one token after 16
others, and in brackets the median of the rounds.

llama.cpp runs the dense weights of the same model, from gguf files in Q4_0 and Q8_0, the head in
Q8_0 as ours is in int8, where `peers/setup.sh llamacpp DIR` was run. The files take a while:
--write makes them in the folder of --files, where the next run finds them. A ratio is the median
over rounds of its time by ours. Before the race both judge 64 random tokens; the loss per token is
in the table, because it would differ if a file were not the same model.

The share outside of products is 1 minus the time of all products of a token, run alone in the same
order over the same packed weights, less what a call from Python costs: a product of 16 x 16.
"""

import contextlib
import statistics
import tempfile
from pathlib import Path

import gguf
import torch
import transformers
from torch import nn

from gossamer.cli.shell import table
from gossamer.formats import SparseMatrix
from gossamer.ops.linear.few import pack_few
from gossamer.running.decoder import DecoderEngine
from support.decoders import cross_entropy, timed
from support.gguf_files import write_gguf
from support.llamacpp import LlamaCpp
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
# Of llama.cpp's files.
TYPES = {kind: gguf.GGMLQuantizationType[kind] for kind in ("Q4_0", "Q8_0")}
ARCHITECTURES = {
    "LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3", "Gemma3ForCausalLM": "gemma3",
}  # fmt: skip


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
    model.config.num_hidden_layers = drawn * repeats
    if hasattr(model.config, "layer_types"):
        model.config.layer_types = list(model.config.layer_types) * repeats
    return model


def write_files(name, folder):
    """The gguf files of a model, by type; what is there is taken."""
    paths = {kind: Path(folder) / f"{name}-{kind}.gguf" for kind in TYPES}
    missing = [kind for kind, path in paths.items() if not path.exists()]
    model = make(name, 0.0) if missing else None

    def add_tokens(writer):
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(model.config.vocab_size)

    for kind in missing:
        progress(f"writing {paths[kind].name}")
        unfinished = paths[kind].with_suffix(".part")
        types = {"embed_tokens": gguf.GGMLQuantizationType.Q8_0, "": TYPES[kind]}
        write_gguf(model, ARCHITECTURES[SHAPES[name][0]], unfinished, add_tokens, types)
        unfinished.rename(paths[kind])
    return paths


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

    def loss(self, ids_T):
        """Cross entropy per token behind the first."""
        return float(cross_entropy(self.engine.logits(ids_T)[:-1], ids_T[1:])) / (len(ids_T) - 1)

    def _all(self, runs):
        def run_all():
            for run, x in runs:
                run(x)

        return min(timed(run_all)[1] for _ in range(NEW))


class Rival:
    """llama.cpp with one file."""

    def __init__(self, name, kind, path, peer):
        self.name, self.kind, self._peer = name, kind, peer
        peer.load(path, title=kind)
        self.title, self.bytes = peer.title, path.stat().st_size
        self.tokens = []

    def loss(self, ids_T):
        """Cross entropy per token behind the first."""
        return self._peer.likelihood(ids_T[None]) / (len(ids_T) - 1)

    def turn(self):
        """CPU seconds of a token."""
        self.tokens.append(min(cpu for _, cpu in self._peer.generate(BEFORE)))


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    options.add_argument("--files", type=Path, help="folder of gguf files, which are kept there")
    options.add_argument("--write", action="store_true", help="make them, and nothing else")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    with contextlib.ExitStack() as stack:
        folder = given.files or stack.enter_context(tempfile.TemporaryDirectory())
        Path(folder).mkdir(parents=True, exist_ok=True)

        def start():
            return stack.enter_context(LlamaCpp.start(given.peers, None, given.threads))

        rivals = []
        for name in given.models:
            if not given.write and (peer := start()) is None:
                break
            for kind, path in write_files(name, folder).items():
                if not given.write:
                    rivals.append(Rival(name, kind, path, peer))
                    peer = start()
        if not given.write:
            compare(given, rivals)


def compare(given, rivals):
    """The race, and what it gave."""
    contenders = []
    for name in given.models:
        for kind in KINDS:
            progress(f"packing {name}, {kind}")
            contenders.append(Contender(name, kind))
        contenders += [rival for rival in rivals if rival.name == name]
    losses = [one.loss(random_ids(one.name)) for one in contenders]
    for _ in range(given.rounds + 1):
        for one in contenders:
            one.turn()
    types = [f">x llama.cpp {type}" for type in TYPES]
    shown = table("model", "weights", ">tokens/s", ">MB/token", ">loss", ">ms of a token", *types,
                  ">ms outside", ">outside of products")  # fmt: skip
    document = {"machine": machine(), "threads": given.threads, "models": {}}
    document["llama.cpp"] = next((rival.title for rival in rivals), None)
    for one, loss in zip(contenders, losses, strict=True):
        tokens = one.tokens[1:]  # the first turn warms up
        best = min(tokens)
        found = {"tokens_per_second": 1 / best, "median": 1 / statistics.median(tokens)}
        if isinstance(one, Rival):
            ratios, size, outside = {}, one.bytes, ("", "")
        else:
            size = one.engine.size.bytes_per_token
            ratios = {r.kind: ratio_to(r, tokens) for r in rivals if r.name == one.name}
            shares = [1 - p / t for t, p in zip(tokens, one.products[1:], strict=True)]
            share, low, high = statistics.median(shares), min(shares), max(shares)
            found |= {"outside": share, "outside_range": [low, high], "over_llamacpp": ratios}
            outside = (f"{share * best * 1e3:.2f}", f"{share:.1%} ({low:.1%} to {high:.1%})")
        found |= {"bytes_per_token": size, "loss": loss}
        document["models"][f"{one.name}, {one.kind}"] = found
        shown.add_row(
            one.name, one.kind, f"{1 / best:.0f} ({1 / statistics.median(tokens):.0f})",
            f"{size / 1e6:.0f}", f"{loss:.3f}", f"{best * 1e3:.2f}",
            *("{:.2f} ({:.2f} to {:.2f})".format(*ratios[t]) if t in ratios else "" for t in TYPES),
            *outside,
        )  # fmt: skip
    note = f"One thread, CPU time; best (median of the rounds). {document['llama.cpp'] or ''}"
    give(given, document, shown, note)


def random_ids(name):
    """Tokens that no model was made for."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, SHAPES[name][3]["vocab_size"], (64,), generator=generator)


def ratio_to(rival, tokens):
    """Median, least and most of the rounds: its time by ours."""
    ratios = [theirs / ours for theirs, ours in zip(rival.tokens[1:], tokens, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


if __name__ == "__main__":
    main()
