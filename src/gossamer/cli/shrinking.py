# SPDX-License-Identifier: Apache-2.0
"""The work behind `gossamer shrink`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gossamer.cli.models import check_source, load_source, source_path
from gossamer.cli.shell import Output
from gossamer.cli.user_functions import find_function, is_function
from gossamer.data.clicks import FEATURES_FILE, Features, read_features
from gossamer.data.files import Texts, check_scores
from gossamer.data.graphs import read_nodes
from gossamer.data.graphs.rules import RULES_FILE, GraphRules, read_rules
from gossamer.errors import InputError
from gossamer.io import read_beside
from gossamer.io.artifact.destination import check_destination
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE, known_tokens, make_tokenizer
from gossamer.report import write_html
from gossamer.runs.sources import Source
from gossamer.search import Point, SearchLimits, ShrinkResult, Trial, shrink
from gossamer.search.contenders import EngineContenders, dense_point, engine_points
from gossamer.search.page import search_page
from gossamer.search.workloads import Workload, check_parts, load_workload, read_part

# Of a click log: more of them change no decision, and are held in memory.
_MOST_ROWS = 200_000
_DATA = "one without arguments that returns a list of batches"
_METRIC = "one that takes a model and a part of the data and returns a number"


def run_shrink(  # noqa: PLR0913  (one argument per option)
    out: Output,
    limits: SearchLimits,
    *,
    model: str,
    data: str,
    target: Path,
    budget: float,
    valid_data: str | None,
    test_data: str | None,
    metric: str | None,
    length: int | None,
    also: Sequence[str],
    engines: bool,
) -> ShrinkResult:
    """Load, search, write the report."""
    # Before the model is loaded, which may take minutes: whatever can be wrong without it.
    check_destination(target)
    for text in (model, *also):
        check_source(text)
    quality = find_function(metric, "--metric", _METRIC) if metric else None
    with out.stage("reading data"):
        given = {"--data": data, "--valid-data": valid_data, "--test-data": test_data}
        features, rules = _features(model), _graph_rules(model)
        parts = [
            None if text is None else _data(text, option, features, rules)
            for option, text in given.items()
        ]
        check_parts(*parts)
        for option, part in zip(given, parts, strict=True):
            if features is not None and part is not None and len(part) == _MOST_ROWS:
                out.note(f"{option}: the first {_MOST_ROWS:,} rows are read, no more.")
    with out.stage("loading"):
        # It looks for masks itself: zeros that are there are weights like the others.
        source = load_source(model, detect_masks=False)

    def told(trial: Trial) -> None:
        for point in trial.points:
            out.note(
                f"{point.name}: {point.lost:+.2%} lost, {point.ms:.2f} ms,"
                f" {point.speedup:.2f}x dense ({trial.seconds:.0f} s)"
            )

    def tokenizer_of(source: Source) -> Any:
        if not isinstance(parts[0], Texts):
            return None
        return make_tokenizer(source.beside.get(TOKENIZER_FILE), known_tokens(source.model))

    def contenders(work: Workload, dense: Point) -> Iterator[Point]:
        for text in also:
            rival = load_source(text)
            other = load_workload(
                rival.model, tokenizer_of(rival), parts[0], choose=parts[1], report=parts[2]
            )
            yield dense_point(rival.name, other, dense)
        if engines:
            with EngineContenders(say=out.note) as found:
                yield from engine_points(work, dense, found)

    result = shrink(
        source.model,
        parts[0],  # type: ignore[arg-type]
        target,
        tokenizer=tokenizer_of(source),
        **asdict(limits),
        budget_minutes=budget,
        valid_data=parts[1],
        test_data=parts[2],
        metric=quality,
        length=length,
        contenders=contenders,
        beside=source.beside,
        on_trial=told,
        say=out.note,
    )
    write_html(search_page(result, limits, f"{source.name}, shrunk"), result.work / "report.html")
    return result


def _features(model: str) -> Features | None:
    """What a model of click logs reads its rows with; None for other models."""
    found = _beside(model).get(FEATURES_FILE)
    return None if found is None else read_features(found, model)


def _graph_rules(model: str) -> GraphRules | None:
    """How a model of graphs takes its data; None for other models."""
    found = _beside(model).get(RULES_FILE)
    return None if found is None else read_rules(found, model)


def _beside(model: str) -> dict[str, bytes]:
    return read_beside(source_path(model)) if source_path(model).exists() else {}


def _data(text: str, option: str, features: Features | None, rules: GraphRules | None) -> Any:
    if is_function(text) and not Path(text).exists():
        return find_function(text, option, _DATA)()
    try:
        if features is not None:
            return features.read_labelled(Path(text), _MOST_ROWS)
        if rules is not None:
            return read_nodes(Path(text), rules)
        found = read_part(Path(text))
        if isinstance(found, Texts):
            check_scores(found)
    except InputError as error:
        raise InputError(f"{option} {error}") from error
    return found
