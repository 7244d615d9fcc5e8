# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M smaller: perplexity, bytes and speed of ours beside llama.cpp's quantisations.

    GOSSAMER_DATA=DIR python benchmarks/shrink_smollm.py FOLDER --peers DIR [--windows 40] [--json]

FOLDER keeps the pruned models (support/smollm2_points.py makes what is missing, minutes each) and
llama.cpp's files, which its own quantiser makes. All start from the same packaged 4-bit file. The
perplexity is that of the engines themselves on the same windows of 512 tokens of WikiText-2 valid,
behind the part that calibration saw. `file` is the weights on disk, `packed` what the engine keeps
of them in memory (for llama.cpp the file). A point is on the front if no other one is at least as
good in perplexity, bytes and generated tokens per second, and better in one of them. `solved` int4
is rounded while the layer is solved for, `rounded` afterwards.
"""

import contextlib
import functools
import json
import math
from pathlib import Path

import torch

from gossamer import settings
from gossamer.cli.models import demo_path
from gossamer.cli.shell import table
from gossamer.io import load
from sparsify import SmolLM2
from support.decoders import Gossamer, race, rates
from support.llamacpp import LlamaCpp
from support.options import give, machine, parser, progress
from support.smollm2_points import POINTS, make

# Name -> llama_ftype. 576 columns are no multiple of 256, so K types fall back in most tensors.
LLAMA_TYPES = {"Q8_0": 7, "Q4_0": 2, "Q4_K_M": 15, "Q3_K_M": 12, "Q2_K": 10}
# Title -> (model, dtype of the layers; of the table, if it is not int8).
OURS = {
    "dense int8": ("dense-int8", "int8"),
    "dense int4 with offsets": ("dense-offset", "int4"),
    "dense int4 with offsets, table too": ("dense-offset-table4", "int4", "int4"),
    "dense int4, solved": ("dense-int4", "int4"),
    "dense int4, rounded": ("dense-int4-after", "int4"),
    "30 % int8": ("30-int8", "int8"),
    "30 % int4, solved": ("30-int4", "int4"),
    "50 % int8": ("50-int8", "int8"),
    "50 % int4, solved": ("50-int4", "int4"),
    "50 % int4, rounded": ("50-int4-after", "int4"),
    "50 % int4, solved, table int4": ("50-int4-table4", "int4", "int4"),
    "2:4 int4, solved": ("2of4-int4", "int4"),
}


def perplexity(folder, engine, windows):
    """Of an engine; what was computed before is read from the folder."""
    file, key = folder / "perplexity.json", f"{engine.title}, {len(windows)} windows"
    known = json.loads(file.read_text()) if file.exists() else {}
    if key not in known:
        known[key] = math.exp(engine.likelihood(windows) / (windows.numel() - len(windows)))
        file.write_text(json.dumps(known, indent=1))
        progress(f"{key}: perplexity {known[key]:.2f}")
    return known[key]


def gguf_files(folder, peers):
    """The packaged file and what llama.cpp's quantiser makes of it."""
    files = {"Q4_1 (packaged)": demo_path("smollm2")}
    for name, number in LLAMA_TYPES.items():
        files[name] = folder / f"{name}.gguf"
        if not files[name].exists():
            with LlamaCpp.start(peers, None, 1) as peer:
                if peer is None:
                    return {}
                peer.quantise(demo_path("smollm2"), files[name], number)
    return files


def weight_bytes(path):
    """Of a gguf file or of the tensor files of an artifact."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


def our_points(given):
    """Engines of all models that are there, with their bytes."""
    rows = []
    for title, (name, *dtypes) in OURS.items():
        path = given.folder / name
        if not path.exists():
            progress(f"{title}: {path} is not there")
            continue
        engine = Gossamer(f"gossamer {title}", functools.partial(load, path), *dtypes)
        packed = engine.engine.size.resident_bytes
        rows.append((engine, {"file_bytes": weight_bytes(path), "packed_bytes": packed}))
    return rows


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--windows", type=int, default=40)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--wait", action="store_true", help="for Enter, before the race")
    options.add_argument("--as-is", action="store_true", help="make no models that are missing")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    if not given.as_is:
        make(given.folder, POINTS)
    windows = SmolLM2(settings.data_dir(), quick=False).evaluation[: given.windows]
    rows = our_points(given)
    with contextlib.ExitStack() as stack:
        for name, path in gguf_files(given.folder, given.peers).items():
            peer = stack.enter_context(LlamaCpp.start(given.peers, path, given.threads, title=name))
            size = weight_bytes(path)
            rows.append((peer, {"file_bytes": size, "packed_bytes": size}))
        for engine, row in rows:
            row["perplexity"] = perplexity(given.folder, engine, windows)
        if given.wait:
            progress("ready to race; press Enter")
            input()
        times, read_rate = race([engine for engine, _ in rows], given.rounds, given.threads)
    points = {}
    for engine, row in rows:
        best, median = rates(times[engine.title])
        points[engine.title] = {
            **row, "resident_bytes": engine.resident, "best": best, "median": median,
            "generation": best["empty"],
        }  # fmt: skip
    for point in points.values():
        for bytes_of in ("file_bytes", "packed_bytes"):
            point[f"on_front_by_{bytes_of}"] = on_front(point, points.values(), bytes_of)
    report(given, points, len(windows), read_rate)


def on_front(point, others, bytes_of):
    """Whether nothing is at least as good in everything and better in something."""

    def costs(one):
        return one["perplexity"], one[bytes_of], -one["generation"]

    mine = costs(point)
    return not any(
        all(a <= b for a, b in zip(costs(other), mine, strict=True)) and costs(other) != mine
        for other in others
    )


def report(given, points, num_windows, read_rate):
    shown = table("SmolLM2-135M", ">perplexity", ">file MB", ">packed MB", ">resident MB",
                  ">prompt t/s", ">generate t/s", ">after 128", "front by file", "by packed",
                  )  # fmt: skip
    for title, point in points.items():
        best, median = point["best"], point["median"]
        shown.add_row(
            title, f"{point['perplexity']:.2f}", f"{point['file_bytes'] / 1e6:.1f}",
            f"{point['packed_bytes'] / 1e6:.1f}", f"{point['resident_bytes'] / 1e6:.0f}",
            *(f"{best[kind]:.0f} ({median[kind]:.0f})" for kind in ("prompt", "empty", "after")),
            *("yes" if point[f"on_front_by_{by}_bytes"] else "no" for by in ("file", "packed")),
        )  # fmt: skip
    document = {"machine": machine(), "threads": given.threads, "points": points}
    document |= {"windows": num_windows, "read_gb_per_second": read_rate}
    read = f"Reading memory: {read_rate:.1f} GB/s."
    give(given, document, shown, f"{num_windows} windows of 512 tokens. {read} Best (median).")


if __name__ == "__main__":
    main()
