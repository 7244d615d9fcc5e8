# SPDX-License-Identifier: Apache-2.0
"""`gossamer prune --dry-run`: what would be kept, needed and taken."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gossamer.cli.models.sources import load_source
from gossamer.cli.pruning_input import PruneRequest, check_request, prepare
from gossamer.cli.shell.output import Output, table
from gossamer.errors import RecipeError
from gossamer.report.report import format_bytes
from gossamer.runs.planning import StagePlan, plan_stage

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class PrunePlan:
    """The plan of the first prune stage that looks at data."""

    stage: StagePlan
    out: str

    @property
    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            **asdict(self.stage),
            "peak_bytes": self.stage.peak_bytes,
            "out": self.out,
            "written": False,
        }

    def layer_table(self) -> "Table":
        """One line per layer, in the order in which they are pruned."""
        shown = table("layer", "shape", "pattern", ">kept", ">seconds")
        for layer in self.stage.layers:
            shape = "x".join(map(str, layer.shape))
            shown.add_row(
                layer.name, shape, layer.pattern, f"{layer.kept:,}", f"{layer.seconds:.2f}"
            )
        return shown

    def totals(self) -> "Table":
        """Memory and time."""
        stage = self.stage
        shown = table("", ">estimate")
        shown.add_row("calibration tokens", f"{stage.num_tokens:,}")
        shown.add_row("memory now, model included", format_bytes(stage.process_bytes))
        shown.add_row("activations of all batches", format_bytes(stage.activation_bytes))
        shown.add_row("copies of weights", format_bytes(stage.copy_bytes))
        shown.add_row("statistics and solver", format_bytes(stage.solver_bytes))
        shown.add_row("peak memory", format_bytes(stage.peak_bytes))
        shown.add_row("seconds of pruning, as loaded as now", f"{stage.seconds:.0f}")
        return shown


def plan_prune(request: PruneRequest, out: Output) -> PrunePlan:
    """Load the model, look at one batch, write nothing."""
    steps = [stage.prune for stage in request.recipe.stages if stage.prune is not None]
    if not steps or request.data is None:
        raise RecipeError(
            "--dry-run: plans stages that prune with calibration data. Give --data FILE and a"
            " recipe with such a stage; others take seconds."
        )
    files = check_request(request)
    with out.stage("loading"):
        source = load_source(request.model, say=out.note)
        prepared = prepare(source, request, files)
    with out.stage("looking at one batch"):
        stage = plan_stage(source.model, steps[0], prepared.batches or [])
    return PrunePlan(stage, str(request.target))
