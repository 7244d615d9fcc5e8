# SPDX-License-Identifier: Apache-2.0
"""`gossamer convert`: artifacts to dense checkpoints and back, and the files of other tools."""

from pathlib import Path
from typing import Any

from click import Choice, UsageError, argument, option

from gossamer.cli.options import PATH
from gossamer.cli.shell import Output, gossamer_command, table

COMPRESSED = "compressed-tensors"
SENTENCES = "sentence-transformers"
ONNX, GGUF = SINGLE_FILES = ("onnx", "gguf")
GGUF_TYPES = ("auto", "F32", "F16", "BF16", "Q8_0", "Q4_1", "Q4_0")
_EXAMPLES = """
gossamer convert pruned/ plain/ --format dense
gossamer convert small/ for-search/ --format sentence-transformers
gossamer convert small/ small.onnx --format onnx
gossamer convert smollm2/ smollm2.gguf --format gguf
gossamer convert from-another-pruner/ packed/ --format packed
gossamer convert model.safetensors packed/
gossamer convert model.onnx packed/
gossamer convert SmolLM2-135M.Q4_1.gguf smollm2/ --format dense
"""


@gossamer_command("Artifacts to files of other tools and back.", _EXAMPLES)
@argument("source", metavar="IN")
@argument("target", metavar="OUT", type=PATH)
@option(
    "--format",
    "form",
    type=Choice(["packed", "dense", ONNX, GGUF, COMPRESSED, SENTENCES]),
    default="packed",
    help="packed: kept weights only. dense: ordinary safetensors with zeros, for any tool."
    " onnx: one file, zeros stored, int8 weights as codes. gguf: one file of a decoder."
    " compressed-tensors: sparse-bitmask for its versions up to 0.14. sentence-transformers: dense,"
    " with the folders of its modules.",
)
@option(
    "--type",
    "kind",
    type=Choice(GGUF_TYPES),
    help="Of matrices in gguf. auto (default): for each the smallest that changes no weight. Others"
    " round, and say what that changed.",
)
def convert(out: Output, source: str, target: Path, form: str, kind: str | None) -> None:
    """Write the model in IN to OUT in another form; weights keep their bits.

    IN is a gossamer artifact, a local Hugging Face directory, one safetensors file, a gguf file of
    a decoder (dequantised to fp32), an ONNX file of an encoder or CNN, or a packaged model
    (demo:minilm, demo:smollm2). Masks of compressed-tensors and torch.nn.utils.prune are taken as
    they are; exact zeros that another pruner left are taken as its mask. Tokenizer files go along;
    in a gguf file the tokenizer is part of the file.
    """
    from gossamer.cli.bare_checkpoint import is_bare, read_bare
    from gossamer.cli.models import check_source, load_source, source_path
    from gossamer.io import read_beside, save
    from gossamer.io.artifact import save_compressed_tensors
    from gossamer.io.artifact.destination import check_destination, check_file_destination
    from gossamer.io.artifact.sentence_directory import save_sentence_transformers
    from gossamer.nn.layer_kinds import sparse_layers
    from gossamer.report import format_bytes
    from gossamer.runs.sources import directory_bytes, tensor_bytes

    is_file = form in SINGLE_FILES
    if kind is not None and form != GGUF:
        raise UsageError(f"--type: is for --format gguf, not for --format {form}.")
    check_file_destination(target) if is_file else check_destination(target)
    check_source(source, bare=not is_file)
    with out.stage("reading"):
        path = source_path(source)
        bare = is_bare(path)
        if bare:
            model, beside = read_bare(path), read_beside(path)
        else:
            loaded = load_source(source, detect_masks=True, say=out.note)
            model, beside = loaded.model, loaded.beside
    sparse = dict(sparse_layers(model))
    details: dict[str, Any] = {}
    said: list[str] = []
    with out.stage("writing"):
        if is_file:
            from gossamer.cli.single_files import write_single_file

            details, said = write_single_file(model, target, form, kind, beside)
        elif form == COMPRESSED:
            save_compressed_tensors(model, target, beside=beside)
        elif form == SENTENCES:
            save_sentence_transformers(model, target, beside=beside)
        else:
            save(model, target, format=form, beside=beside)
    before = tensor_bytes(path)
    after = target.stat().st_size if is_file else tensor_bytes(target)
    document = {
        "input": {"path": source, "tensor_bytes": before},
        "output": {
            "path": str(target),
            "format": form,
            "tensor_bytes": after,
            "directory_bytes": after if is_file else directory_bytes(target),
            **details,
        },
        "sparse_layers": {
            name: {"pattern": str(module.pattern), "sparsity": 1 - module.density}
            for name, module in sparse.items()
        },
    }
    ratio = f"{before / after:.2f}x" if after else ""
    row = ("bytes of tensor files", format_bytes(before), format_bytes(after), ratio)
    shown = table("", ">before", ">after", ">ratio", rows=[row])
    patterns = ", ".join(sorted({str(module.pattern) for module in sparse.values()}))
    found = f"{len(sparse)} sparse layers ({patterns})" if sparse else "no sparse layers"
    out.result(document, shown, f"{target}: {form}, {found}.")
    for line in said:
        out.note(line)
    if form == COMPRESSED:
        out.note(
            "compressed-tensors 0.15 and later, current transformers and vLLM reject"
            " sparse-bitmask; 0.14 and earlier read it, and so does gossamer."
        )
    if bare:
        out.note("IN names no architecture: load OUT with gossamer.load(path, model=your_model).")
    if not sparse and form == "packed":
        out.note("Nothing is sparse, so nothing became smaller.")
