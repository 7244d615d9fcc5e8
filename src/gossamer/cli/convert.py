# SPDX-License-Identifier: Apache-2.0
"""`gossamer convert`: packed artifacts to dense checkpoints and back."""

from pathlib import Path

import click

from gossamer.cli.command import Command
from gossamer.cli.output import Output, table

_EXAMPLES = """
gossamer convert pruned/ plain/ --format dense
gossamer convert from-another-pruner/ packed/ --format packed
gossamer convert model.safetensors packed/
"""


@click.command(
    cls=Command, examples=_EXAMPLES, short_help="Packed artifacts to dense files and back."
)
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["packed", "dense"]),
    default="packed",
    show_default=True,
    help="packed: kept weights only. dense: ordinary safetensors with zeros, for any tool.",
)
@click.pass_obj
def convert(out: Output, source: Path, target: Path, form: str) -> None:
    """Write the model in IN to OUT in another form; weights keep their bits.

    IN is a gossamer artifact, a local Hugging Face directory or one safetensors file. Exact zeros
    that another pruner left are taken as its mask and their pattern is detected.
    """
    from gossamer.cli.bare_checkpoint import is_bare, read_bare
    from gossamer.cli.sources import directory_bytes, load_source, tensor_bytes
    from gossamer.io import save
    from gossamer.io.opened import check_replaceable
    from gossamer.nn import CompactWeight, MaskedWeight
    from gossamer.report.report import format_bytes

    check_replaceable(target)
    with out.stage("reading"):
        bare = is_bare(source)
        model = read_bare(source) if bare else load_source(str(source), detect_masks=True).model
    sparse = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, MaskedWeight | CompactWeight)
    }
    with out.stage("writing"):
        save(model, target, format=form)
    before, after = tensor_bytes(source), tensor_bytes(target)
    document = {
        "input": {"path": str(source), "tensor_bytes": before},
        "output": {
            "path": str(target),
            "format": form,
            "tensor_bytes": after,
            "directory_bytes": directory_bytes(target),
        },
        "sparse_layers": {
            name: {"pattern": str(module.pattern), "sparsity": 1 - module.density}
            for name, module in sparse.items()
        },
    }
    shown = table("", ">before", ">after", ">ratio")
    ratio = f"{before / after:.2f}x" if after else ""
    shown.add_row("bytes of tensor files", format_bytes(before), format_bytes(after), ratio)
    patterns = ", ".join(sorted({str(module.pattern) for module in sparse.values()}))
    found = f"{len(sparse)} sparse layers ({patterns})" if sparse else "no sparse layers"
    out.result(document, shown, f"{target}: {form}, {found}.")
    if bare:
        out.note("IN names no architecture: load OUT with gossamer.load(path, model=your_model).")
    if not sparse and form == "packed":
        out.note("Nothing is sparse, so nothing became smaller.")
