# SPDX-License-Identifier: Apache-2.0
"""`gossamer run encode`: sentences of a file to vectors."""

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from click import argument, option

from gossamer.cli.options import (
    PATH,
    POSITIVE,
    pooling_option,
    precision_option,
    prompt_option,
    special_tokens_option,
    threads_option,
)
from gossamer.cli.shell import Output, gossamer_command, table
from gossamer.errors import InputError

_EXAMPLES = """
gossamer run encode minilm sentences.txt -o vectors.npy
gossamer run encode pruned/ sentences.jsonl -o vectors.jsonl --precision int8
gossamer run encode pruned/ reviews.tsv --pooling cls --no-normalise | head
"""


@gossamer_command("Sentences of a file to vectors.", _EXAMPLES)
@argument("model")
@argument("file", type=PATH)
@option(
    "-o",
    "--out",
    "target",
    type=PATH,
    help="A .npy matrix, or .jsonl with the texts.  [default: JSON lines on stdout]",
)
@option("--batch", type=POSITIVE, default=32, help="Texts per call.")
@pooling_option
@prompt_option
@option(
    "--normalise/--no-normalise",
    default=None,
    help="Vectors of length 1.  [default: as modules.json says, else yes]",
)
@precision_option
@option("--max-tokens", type=POSITIVE, help="Cut longer texts.  [default: as the model can]")
@special_tokens_option
@threads_option
def encode(
    out: Output,
    /,
    model: str,
    file: Path,
    target: Path | None,
    batch: int,
    precision: str,
    **asked: Any,
) -> None:
    """One vector for every text of FILE, in its order.

    MODEL is a gossamer artifact, a local Hugging Face directory or a packaged model such as minilm.
    FILE holds a text per line (.txt), JSON lines with "text" (.jsonl) or a table whose first line
    names a column text or sentence (.tsv).
    """
    import torch

    from gossamer.cli.models import check_source, load_source
    from gossamer.cli.run.vectors import WriteVectors, check_suffix, json_lines, open_vectors
    from gossamer.data.files import read_samples
    from gossamer.io.artifact.destination import check_file_destination
    from gossamer.running.layers import compile as compile_model
    from gossamer.running.text import Embedder

    if target is not None:
        check_suffix(target)
        check_file_destination(target, makes_parents=False)
    texts = read_samples(file).texts
    if not texts:
        raise InputError(f"{file}: holds no text; expected a .txt, .jsonl or .tsv file.")
    check_source(model)
    with out.stage("loading"):
        source = load_source(model, say=out.note)

        ids, _ = Embedder(source.model, source.beside, **asked).tokens.cut(texts[: 8 * batch])
        # Of a common batch, to choose kernels for: a power of two, so that choices are kept.
        mean = sum(map(len, ids)) / len(ids) * min(batch, len(ids))
        tokens = 1 << round(mean).bit_length() - 1
    with out.stage("choosing kernels"):
        embedder = Embedder(
            compile_model(source.model, tokens=tokens, inplace=True, precision=precision),
            source.beside,
            **asked,
        )
    kept: list[list[float]] = []
    put: AbstractContextManager[WriteVectors]
    if target is not None:
        put = open_vectors(target, len(texts))
    elif out.json:
        put = nullcontext(lambda _, vectors: kept.extend(vectors.tolist()))
    else:
        put = nullcontext(lambda some, vectors: sys.stdout.writelines(json_lines(some, vectors)))
    with out.stage("encoding", total=len(texts)) as stage, put as write:
        start = time.perf_counter()
        num_tokens = num_cut = done = 0
        for part in embedder.encode(texts, batch):
            size = len(part.vectors)
            write(texts[done : done + size], part.vectors)
            num_tokens += part.num_tokens
            num_cut += part.num_cut
            done += size
            stage.advance(size)
        seconds = time.perf_counter() - start
    document: dict[str, Any] = {
        "model": source.name,
        "texts": done,
        "tokens": num_tokens,
        "texts_cut": num_cut,
        "width": part.vectors.shape[1],
        "seconds": seconds,
        "texts_per_second": done / seconds,
        "tokens_per_second": num_tokens / seconds,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "file": target,
    }
    rates = f"{done / seconds:.1f}", f"{num_tokens / seconds:.0f}"
    if target is None:
        # stdout holds the vectors: lines, or a part of the document.
        out.note(f"{done} texts, {rates[0]} sentences/s, {rates[1]} tokens/s")
        out.result(document | ({"vectors": kept} if out.json else {}))
    else:
        head = (">texts", ">tokens", ">seconds", ">sentences/s", ">tokens/s", ">width")
        row = (f"{done}", f"{num_tokens}", f"{seconds:.2f}", *rates, f"{document['width']}")
        out.result(document, table(*head, rows=[row]), f"{target}: {done} vectors, {precision}.")
    if num_cut:
        limit = embedder.tokens.max_tokens
        out.note(f"{num_cut} texts were longer than {limit} tokens and were cut.")
