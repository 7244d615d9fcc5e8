# SPDX-License-Identifier: Apache-2.0
"""Families of encoders on one native call, beside BERT and other engines.

    python benchmarks/encoder_families.py [--model bert xlm-r modernbert vit] [--batch 1]
        [--sparsity 0.8 0.9] [--seconds 20] [--rounds 5] [--quick] [--json [FILE]] [--peers DIR]

Shapes of BERT-base, XLM-R-base, ModernBERT-base and ViT-B/16 with random weights and random
unstructured masks on the layers; texts of 128 tokens, images of 224 x 224. The whole model is run,
from ids or pixels to the last hidden state, on one thread, by CPU time. All engines take turns,
minimum of many. Other engines get the same dense weights as one ONNX graph: ONNX Runtime int8 is
dynamic, OpenVINO int8 is what NNCF makes of a transformer. `error` is the largest difference to
torch in fp32 over the largest value; random weights make int8 look worse than trained ones do.

`outside products` is the share of gossamer's time in which it does something else than multiply
weights: attention, norms, embeddings and transformers' own Python. Products alone are timed by
`PackedEncoder.run_products` in the same race.
"""

import contextlib
import copy
import functools
import os
import tempfile
from pathlib import Path

import torch
import transformers
from torch import nn

import gossamer
from gossamer.ops.timing import race
from gossamer.running.bench import RaceEntry
from gossamer.running.encoder import NativeEncoder
from gossamer.running.rivals import TITLES, EngineFailed, NetworkEngine, export_network, find_engine
from gossamer.running.rivals.engine_scripts.turn import turn
from support.options import give, machine, parser, progress

_TOKENS = 128
# Few words: a row is looked up per token, whatever their number.
_WORDS = {"vocab_size": 2000}
_MODELS = {
    "bert": ("BERT-base", "BertModel", _WORDS),
    "xlm-r": ("XLM-R-base", "XLMRobertaModel", {
        **_WORDS, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "modernbert": ("ModernBERT-base", "ModernBertModel", {
        **_WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
        "sep_token_id": 2}),
    "vit": ("ViT-B/16", "ViTModel", {}),
}  # fmt: skip
_ENGINES = ("onnxruntime", "openvino")


class Hidden(nn.Module):
    """From ids or pixels to the last hidden state."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        """Of ids [B, T] or pixels [B, C, H, W]."""
        return self.model(x).last_hidden_state


def main():
    given = arguments()
    os.environ.setdefault("GOSSAMER_TUNE", "off")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    before, rows, versions = machine(), [], {}
    for name in given.model:
        for batch in given.batch:
            title = _MODELS[name][0]
            progress(f"{title}, batch {batch}: load {os.getloadavg()[0]:.1f}")
            rows += measure(name, batch, given, versions)
    document = {"machine": before, "versions": versions, "rows": rows,
                "load_at_end": f"{os.getloadavg()[0]:.1f}"}  # fmt: skip
    told = ", ".join(f"{title} {version}" for title, version in versions.items())
    give(given, document, table(rows), f"{told or 'No other engine installed'}."
         f" Load at the end {document['load_at_end']}.")  # fmt: skip


def arguments():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--model", nargs="+", choices=list(_MODELS), default=list(_MODELS))
    options.add_argument("--batch", nargs="+", type=int, default=[1])
    options.add_argument("--sparsity", nargs="+", type=float, default=[0.8, 0.9])
    options.add_argument("--rounds", type=int, default=5, help="turns of every engine, at least")
    given = options.parse_args()
    given.seconds = given.seconds or (5.0 if given.quick else 20.0)
    given.rounds = min(given.rounds, 3) if given.quick else given.rounds
    return given


def made(name, sparsity):
    """Random weights; masks of a higher sparsity are inside those of a lower one."""
    _, kind, settings = _MODELS[name]
    kind = getattr(transformers, kind)
    torch.manual_seed(0)
    model = kind(kind.config_class(**copy.deepcopy(settings))).eval()
    if sparsity:
        gossamer.sparsify(model, sparsity=sparsity)
    return model


def inputs_of(name, batch):
    draw = torch.Generator().manual_seed(2)
    if name == "vit":
        return torch.randn(batch, 3, 224, 224, generator=draw)
    return torch.randint(3, 2000, (batch, _TOKENS), generator=draw)


def calling(model, x):
    def run():
        with torch.inference_mode():
            return model(x)

    return run


def measure(name, batch, given, versions):
    x, dense = inputs_of(name, batch), Hidden(made(name, 0))
    expected = calling(dense, x)()
    entries, products = [], {}

    def add(engine, precision, sparsity, error, watch):
        entries.append(RaceEntry(engine, precision, sparsity, error, watch))
        progress(f"  {engine} {precision} {sparsity:.0%}: error {error:.1e}")

    add("torch", "fp32", 0.0, 0.0, functools.partial(turn, calling(dense, x), 1))
    for sparsity in (0.0, *given.sparsity):
        model = made(name, sparsity)
        wanted = calling(Hidden(model), x)() if sparsity else expected
        for precision in ("fp32", "int8"):
            if not sparsity and precision == "fp32":
                continue  # dense fp32 is torch's
            fast = gossamer.compile(model, x.shape[0] * _TOKENS, precision=precision)
            packed = next(m.packed for m in fast.modules() if isinstance(m, NativeEncoder))
            run = calling(Hidden(fast), x)
            add("gossamer", precision, sparsity, far(run(), wanted),
                functools.partial(turn, run, 1))  # fmt: skip
            tokens = expected.shape[0] * expected.shape[1]
            products[len(entries) - 1] = functools.partial(
                turn, functools.partial(packed.run_products, tokens), 1
            )
    with contextlib.ExitStack() as stack:
        add_peers(dense, x, expected, given, stack, versions, add)
        watches = [entry.watch for entry in entries] + list(products.values())
        times = race(watches, budget_seconds=given.seconds, min_rounds=given.rounds)
    alone = dict(zip(products, times[len(entries) :], strict=True))
    return [
        {
            "model": _MODELS[name][0],
            "batch": batch,
            "engine": entry.engine,
            "precision": entry.precision,
            "sparsity": entry.sparsity,
            "error": entry.error,
            "ms": us * 1e-3,
            "outside": 1 - alone[i] / us if i in alone else None,
        }
        for i, (entry, us) in enumerate(zip(entries, times, strict=False))
    ]


def far(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


def add_peers(dense, x, expected, given, stack, versions, add):
    """The engines that are installed, with the dense weights; says which are not."""
    graph = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "encoder.onnx"
    found = {name: find_engine(name, given.peers) for name in _ENGINES}
    for name, python in found.items():
        if python is None:
            progress(f"{TITLES[name]}: not installed; benchmarks/peers/setup.sh {name} DIR")
            continue
        if not graph.exists():
            # Its fused attention has no form in ONNX that all engines know.
            dense.model.config._attn_implementation = "eager"
            export_network(dense, x, graph)
        engine = stack.enter_context(NetworkEngine(name, python, 1))
        more = torch.cat([x, x.flip(0).roll(1, dims=-1)])
        for precision in ("fp32", "int8"):
            try:
                hidden = engine.load(precision, graph, x, more, precision, kind="encoder")
            except EngineFailed as failure:
                progress(f"{failure}; {precision} left out")
                continue
            versions[engine.title] = engine.version
            error = far(torch.from_numpy(hidden), expected)
            add(engine.title, precision, 0.0, error, functools.partial(engine.turn, precision))


def table(rows):
    lines = [
        "| model | batch | engine | precision | sparsity | ms | x ONNX Runtime | x OpenVINO"
        " | outside products | error |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]

    def over(row, engine):
        same = [r["ms"] for r in rows if r["engine"] == engine and r["precision"] == "int8"
                and (r["model"], r["batch"]) == (row["model"], row["batch"])]  # fmt: skip
        return f"{same[0] / row['ms']:.2f}" if same else "-"

    for row in rows:
        outside = "-" if row["outside"] is None else f"{row['outside']:.0%}"
        lines.append(
            f"| {row['model']} | {row['batch']} | {row['engine']} | {row['precision']}"
            f" | {row['sparsity']:.0%} | {row['ms']:.1f} | {over(row, 'ONNX Runtime')}"
            f" | {over(row, 'OpenVINO')} | {outside} | {row['error']:.1e} |"
        )
    return "\n".join([*lines, "", "Ratios are over the engine's own int8 on the dense weights."])


if __name__ == "__main__":
    main()
