# SPDX-License-Identifier: Apache-2.0
"""One entry is carried out and compared with its record."""

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gossamer.errors import ArtifactError, InputError
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.runs.sources import Source
from gossamer.runs.verbs import prune, train
from gossamer.runs.zoo.entries import ENTRIES, Entry
from gossamer.runs.zoo.sentences import generated_sentences

_SENTENCES = "sentences:"


@dataclass(frozen=True)
class Made:
    """What making an entry gave.

    Attributes:
        entry: its record.
        path: the artifact.
        score: what was measured here.
        weight_bytes: of the tensor files.
        digest: of them.
        kernels: the kernel set that computed it.
        same_bytes: whether the digest is the recorded one; None: none is recorded for this set.
        dense_ms: of the dense model here; None: not measured.
        ms: of this one.
    """

    entry: Entry
    path: Path
    score: float
    weight_bytes: int
    digest: str
    kernels: str
    same_bytes: bool | None
    dense_ms: float | None
    ms: float | None


def kernel_set() -> str:
    """What decides the bits of a result: our kernels, torch's, the processor, and the version."""
    capability = torch.backends.cpu.get_cpu_capability()
    version = torch.__version__.partition("+")[0]
    return f"{active_kernels()}, {capability}, {cpu_name()}, torch {version}"


def make_entry(
    name: str,
    out: Path,
    load: Callable[[str], Source],
    *,
    entries: tuple[Entry, ...] = ENTRIES,
    say: Callable[[str], None] | None = None,
) -> Made:
    """Make one model of the zoo and check it.

    Arithmetic runs on one thread meanwhile: sums must not depend on how many there are.

    Args:
        name: of an entry.
        out: where the artifact goes.
        load: gives the packaged model of a name.
        entries: where the name is looked up.
        say: gets lines for people.

    Raises:
        InputError: there is no such entry.
        ArtifactError: other bytes than recorded for this kernel set, or, where none are recorded, a
            score beyond the tolerance. The artifact stays for a look.
    """
    found = {entry.name: entry for entry in entries}
    if name not in found:
        raise InputError(f"zoo: there is no entry {name!r}; expected one of {', '.join(found)}.")
    entry, threads = found[name], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        score, report = _carried_out(entry, out, load, say)
    finally:
        torch.set_num_threads(threads)
    digest, size = _of_weights(out)
    kernels = kernel_set()
    wanted = entry.digests.get(kernels)
    same = None if wanted is None else digest == wanted
    made = Made(
        entry, out, score, size, digest, kernels, same, report.ms_dense, report.ms_sparse
    )  # fmt: skip
    _check(made)
    return made


def _carried_out(
    entry: Entry,
    out: Path,
    load: Callable[[str], Source],
    say: Callable[[str], None] | None,
) -> tuple[float, Any]:
    if entry.verb == "train":
        result = train(entry.recipe, entry.data, out=out, overrides=entry.overrides, say=say)
        if result is None:
            raise InputError("zoo: entries are made by one process, not under torchrun.")
        return result.quality[entry.score], result.report
    with tempfile.TemporaryDirectory() as folder:
        text = None
        if entry.data:
            text = Path(folder) / "sentences.txt"
            lines = generated_sentences(int(entry.data.removeprefix(_SENTENCES)))
            text.write_text("\n".join(lines) + "\n", encoding="utf-8")
        report = prune(
            load(entry.model),
            entry.recipe,
            out=out,
            data=text,
            overrides=entry.overrides,
            say=say,
        )
    if report.quality_sparse is None:
        raise InputError(f"zoo: {entry.name} was made, and no quality was measured.")
    return report.quality_sparse, report


def _of_weights(path: Path) -> tuple[str, int]:
    """Digest and bytes of the tensor files: reports hold times, which are never the same."""
    whole, size = hashlib.sha256(), 0
    for file in sorted(path.glob("*.safetensors")):
        content = file.read_bytes()
        whole.update(f"{file.name} {len(content)}\n".encode())
        whole.update(content)
        size += len(content)
    return whole.hexdigest(), size


def _check(made: Made) -> None:
    entry, where = made.entry, f"zoo: {made.entry.name}"
    if made.same_bytes is False:
        raise ArtifactError(
            f"{where}: expected weights with digest {entry.digests[made.kernels][:16]} on"
            f" '{made.kernels}', got {made.digest[:16]} (score {made.score:.4g}, recorded"
            f" {entry.reached:.4g}). The packaged model, torch or gossamer is not the recorded one."
        )
    worse = made.score - entry.reached if entry.lower_is_better else entry.reached - made.score
    if made.same_bytes is None and worse > entry.tolerance:
        raise ArtifactError(
            f"{where}: expected a score of {entry.reached:.4g} within {entry.tolerance:.4g}, got"
            f" {made.score:.4g} on '{made.kernels}', for which no digest is recorded."
        )
