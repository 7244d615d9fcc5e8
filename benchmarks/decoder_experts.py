# SPDX-License-Identifier: Apache-2.0
"""A decoder with experts beside llama.cpp: tokens per second, and what a token reads.

    python benchmarks/decoder_experts.py [--layers 4] [--batches 1 4 16] [--rounds 5] [--json]
        [--files DIR]

Random weights in the shape of OLMoE-1B-7B (width 2048, 64 experts of 1024, eight for each token,
vocabulary 50304), int4 with the head in int8; llama.cpp runs the same weights as Q4_0 with the head
in Q8_0, where `peers/setup.sh llamacpp DIR` (built here) or `xllamacpp` (a wheel for AVX2) was run.
Layers are one and the same in fp32 and packed each into memory of its own. Both judge 64 random
tokens first: the loss would differ if the models did.

A batch is so many random tokens of one sequence at once, behind 16 others: the same for both, new
ones in each turn. Its experts are counted by hooks on the routers in transformers. `active` is the
weights of these experts and all that is no expert; `GB/s` is that by our best time, beside the rate
at which torch adds up 256 MB. All contenders take turns; one thread, CPU time.
"""

import contextlib
import statistics
import tempfile
from pathlib import Path

import gguf
import torch
from torch import nn
from transformers import OlmoeConfig, OlmoeForCausalLM

from gossamer.cli.shell import table
from gossamer.running.decoder import DecoderEngine
from support.decoders import cross_entropy, timed
from support.gguf_files import write_gguf
from support.llamacpp import LlamaCpp
from support.options import give, machine, parser, progress

CONTEXT, BEFORE, TURN, JUDGED = 512, 16, 4, 64
SHAPE = {
    "hidden_size": 2048,
    "intermediate_size": 1024,
    "num_experts": 64,
    "num_experts_per_tok": 8,
}
READ_BYTES = 256 << 20


def make(layers):
    """A model whose layers repeat."""
    torch.manual_seed(0)
    config = OlmoeConfig(num_hidden_layers=1, max_position_embeddings=CONTEXT, **SHAPE)
    model = OlmoeForCausalLM(config).eval()
    with torch.no_grad():  # so that tokens differ in what they choose
        model.model.layers[0].mlp.gate.weight.normal_(std=1.0 / config.hidden_size**0.5)
    model.model.layers = nn.ModuleList([*model.model.layers] * layers)
    model.config.num_hidden_layers = layers
    return model


def write_file(model, path):
    """llama.cpp's file; what is there is taken."""

    def add_tokens(writer):
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(model.config.vocab_size)

    if not path.exists():
        progress(f"writing {path.name}")
        q8, q4 = (gguf.GGMLQuantizationType[kind] for kind in ("Q8_0", "Q4_0"))
        types = {"embed_tokens": q8, "lm_head": q8, "": q4}
        unfinished = path.with_suffix(".part")
        write_gguf(model, "olmoe", unfinished, add_tokens, types)
        unfinished.rename(path)
    return path


def chosen(model, before, ids):
    """Experts that the last tokens go to, added up over the layers."""
    found = []

    def note(_, __, result):
        found.append(len(result[2][-len(ids) :].unique()))

    hook = model.model.layers[0].mlp.gate.register_forward_hook(note)  # one layer, many times
    with torch.inference_mode():
        model(torch.tensor([before + ids]))
    hook.remove()
    return sum(found)


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--files", type=Path, help="folder of gguf files, which are kept there")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    model = make(given.layers)
    drawn, vocab_size = torch.Generator().manual_seed(1), model.config.vocab_size

    def tokens(count):
        return torch.randint(vocab_size, (count,), generator=drawn).tolist()

    before, judged = tokens(BEFORE), torch.tensor(tokens(JUDGED))
    turns = {size: [tokens(size) for _ in range(TURN)] for size in given.batches}
    experts = {
        size: statistics.mean(chosen(model, before, ids) for ids in lists)
        for size, lists in turns.items()
    }
    with contextlib.ExitStack() as stack:
        folder = given.files or stack.enter_context(tempfile.TemporaryDirectory())
        Path(folder).mkdir(parents=True, exist_ok=True)
        peer = stack.enter_context(LlamaCpp.start(given.peers, None, given.threads))
        if peer is not None:
            path = write_file(model, Path(folder) / f"olmoe-{given.layers}.gguf")
            peer.load(path, title="Q4_0")
        progress("packing")
        with torch.inference_mode():
            wanted = float(cross_entropy(model(judged[None]).logits[0, :-1], judged[1:]))
        engine = DecoderEngine(model, "int4", head_dtype="int8", context=CONTEXT)
        losses = {"fp32": wanted / (JUDGED - 1)}
        losses["ours"] = float(cross_entropy(engine.logits(judged)[:-1], judged[1:])) / (JUDGED - 1)
        if peer is not None:
            losses["llama.cpp"] = peer.likelihood(judged[None]) / (JUDGED - 1)
        del model
        compare(given, engine, peer, losses, before, turns, experts)


def turn(session, before, lists):
    """Seconds of each batch."""
    seconds = []
    for ids in lists:
        session.prompt(before)
        seconds.append(timed(lambda ids=ids: session.prompt(before + ids))[1])
    return seconds


def compare(given, engine, peer, losses, before, turns, experts):
    """The race, and what it gave."""
    session, memory = engine.session(), torch.ones(READ_BYTES // 4)
    rate = READ_BYTES / 1e9 / min(timed(memory.sum)[1] for _ in range(10))
    ours = {size: [] for size in turns}
    theirs = {size: [] for size in turns}
    for number in range(given.rounds + 1):
        for size, lists in turns.items():
            own = turn(session, before, lists)
            other = [] if peer is None else [cpu for _, cpu in peer.batches(before, lists)]
            if number:  # the first warms up
                ours[size].append(statistics.mean(own))
                theirs[size].append(statistics.mean(other) if other else float("nan"))
    whole, fixed, each = sizes(engine, given.layers)
    document = {"machine": machine(), "layers": given.layers, "losses": losses, "batches": {}}
    document["llama.cpp"] = None if peer is None else peer.title
    document |= {"read_gb_s": rate, "bytes": whole}
    shown = table(">batch", ">tokens/s", ">x llama.cpp (range)", ">experts of a layer",
                  ">active MB", ">of all", ">GB/s", f">of {rate:.0f}")  # fmt: skip
    for size in turns:
        best, active = min(ours[size]), fixed + each * experts[size]
        ratios = [b / a for a, b in zip(ours[size], theirs[size], strict=True)]
        found = {
            "tokens_per_second": size / best,
            "over_llamacpp": [statistics.median(ratios), min(ratios), max(ratios)],
            "experts": experts[size] / given.layers,
            "active_bytes": active,
            "gb_s": active / best / 1e9,
        }
        document["batches"][size] = found
        ratio = "{:.2f} ({:.2f} to {:.2f})".format(*found["over_llamacpp"])
        shown.add_row(
            str(size), f"{size / best:.1f}", ratio, f"{found['experts']:.1f}",
            f"{active / 1e6:.0f}", f"{active / whole:.0%}", f"{found['gb_s']:.1f}",
            f"{found['gb_s'] / rate:.0%}",
        )  # fmt: skip
    told = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
    give(given, document, shown, f"Loss per token: {told}. {document['llama.cpp'] or ''}")


def sizes(engine, layers):
    """Bytes of all weights, of those that are no expert, and of one expert."""
    size, num_experts = engine.size, SHAPE["num_experts"]
    idle = num_experts - SHAPE["num_experts_per_tok"]
    each = (size.layer_bytes - size.active_bytes) / layers / idle
    whole = size.layer_bytes + size.head_bytes
    return whole, whole - each * num_experts * layers, each


if __name__ == "__main__":
    main()
