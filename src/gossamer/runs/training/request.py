# SPDX-License-Identifier: Apache-2.0
"""What is asked of a training run: the recipe, the data, and the user's own model."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from gossamer.data.clicks import FEATURES_FILE, Features, read_features
from gossamer.data.graphs import GraphRules
from gossamer.data.tasks import (
    GraphTaskSettings,
    Task,
    clicks_task,
    graph_task,
    image_task,
    labelled_task,
    text_task,
)
from gossamer.errors import InputError, RecipeError
from gossamer.io import read_beside
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE
from gossamer.nn.families.text import DECODER_HEADS, is_decoder, num_positions
from gossamer.nn.layers.tables.late_rows import late_rows
from gossamer.recipes import Recipe
from gossamer.recipes.stages import Train
from gossamer.recipes.stages.train import Architecture, GraphSettings
from gossamer.runs.training.models import DEFAULT_CONTEXT, build_model, context_of, quantize
from gossamer.zoo import MLP

__all__ = [
    "TrainRequest",
    "architecture_of",
    "make_task",
    "model_of",
    "train_stage",
]

# Endings of files, and what they are called; any file may be a text.
_DATA: dict[str, tuple[tuple[str, ...], str]] = {
    "images": ((".npz",), "an .npz file or a folder of idx files"),
    "text": ((), "a text file"),
    "labelled": ((".jsonl", ".csv", ".tsv"), "a .jsonl, .csv or .tsv file of labelled texts"),
    "graph": ((".npz", ".csv", ".tsv"), "a .npz, .csv or .tsv file or a folder with a graph"),
    "clicks": ((".tsv", ".csv", ".txt", ".jsonl"), "a .tsv, .csv, .txt or .jsonl click log"),
}
# A user's function of --model: a module for the recipe's task, or a whole task.
Given = Callable[[], nn.Module | Task]


@dataclass(frozen=True)
class TrainRequest:
    """What is asked for.

    Attributes:
        recipe: has one stage, `train`.
        data: a file, a folder or `zoo:NAME`; None where the user's function brings its own.
        evaluation: a file to measure on; None measures on what is held out.
        given: makes the model or the whole task; None builds what the recipe names.
        given_name: what the model is called, kept in checkpoints.
        resume: go on with the run that lies there.
        allow_change: resume although recipe or data changed.
        tensorboard: also write event files.
        how_to_resume: what to do after a run was stopped, for its last message.
    """

    recipe: Recipe
    data: str | None
    evaluation: str | None = None
    given: Given | None = None
    given_name: str = ""
    resume: bool = False
    allow_change: bool = False
    tensorboard: bool = False
    how_to_resume: str = "the same call, with resume=True"

    @property
    def train(self) -> Train:
        """The one stage."""
        return train_stage(self.recipe)


def train_stage(recipe: Recipe) -> Train:
    """The `train` stage of a recipe that has nothing else."""
    found = recipe.steps_of(Train)
    if len(recipe.stages) != 1 or not found:
        kinds = ", ".join(type(stage.step).__name__.lower() for stage in recipe.stages)
        raise RecipeError(
            f"recipe: 'gossamer train' carries out one stage, train; this recipe has {kinds}. Prune"
            " with 'gossamer prune', then train its artifact: --model FOLDER."
        )
    return found[0]


def make_task(request: TrainRequest, folder: Path, saved_tokenizer: bytes | None = None) -> Task:
    """The data of a request, read and checked, with the model if a function gives one.

    Args:
        request: what is asked for.
        folder: where data that do not fit into memory are kept; made if need be.
        saved_tokenizer: tokenizer.json of a run that is resumed.
    """
    train = request.train
    for text, option in ((request.data, "--data"), (request.evaluation, "--eval")):
        if text is not None:
            _check_data(train.task, text, option)
    made: Any = None if request.given is None else request.given()
    if isinstance(made, Task):
        return made
    if request.data is None:
        raise InputError(
            f"task {train.task}: needs data. Give a file: --data FILE, or --data zoo:{train.task}"
            " for generated ones."
        )
    if train.task == "images":
        flat = architecture_of(train).name == "mlp" if made is None else isinstance(made, MLP)
        task = image_task(request.data, train.batch, train.seed, flat=flat)
    elif train.task == "graph":
        if request.evaluation is not None:
            raise InputError("--eval: parts of a graph are in its file, or are held out of it.")
        task = graph_task(request.data, train.batch, train.seed, _graph_settings(train))
    elif train.task == "clicks":
        log: Any = train.data.clicks
        task = clicks_task(
            request.data,
            train.batch,
            train.seed,
            columns=log.columns(),
            window=log.window,
            folder=folder,
            evaluation=request.evaluation,
            features=_features_of(request),
        )
    else:
        task = _words_task(request, made, saved_tokenizer)
    if made is None:
        return task
    if not isinstance(made, nn.Module):
        raise InputError(
            f"--model: the function must return a torch module or a gossamer.data.tasks.Task, got"
            f" {type(made).__name__}."
        )
    if "vocabulary" in task.sizes:
        _check_reader(made, train.task, task.sizes["vocabulary"])
    return replace(task, model=made)


def _check_reader(model: nn.Module, task: str, vocabulary: int) -> None:
    """Refuse a model of transformers that cannot learn from these tokens, before it is called."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "model_type"):
        return  # a class of the user's own, which may do anything
    kind = type(model).__name__
    if task == "text" and not is_decoder(model):
        raise InputError(
            f"--model: task text trains models that give logits of the next token and see none of"
            f" those behind it, whose classes end in {' or '.join(DECODER_HEADS)}; got a {kind}."
        )
    known = getattr(config.get_text_config(), "vocab_size", None)
    if not isinstance(known, int):
        raise InputError(f"--model: task {task} gives tokens, and a {kind} reads none.")
    if vocabulary > known:
        raise InputError(
            f"--model: these data have {vocabulary} tokens, and this {kind} knows {known}. Put the"
            f" {TOKENIZER_FILE} of the model into its folder, or set data.vocabulary to at most"
            f" {known}."
        )


def _graph_settings(train: Train) -> GraphTaskSettings:
    own = train.data.graph or GraphSettings()
    rules = GraphRules(own.directed, own.normalise, own.split.validation, own.split.test)
    return GraphTaskSettings(rules, own.predict == "links", own.fanouts, own.penalty)


def _beside(request: TrainRequest, name: str) -> bytes | None:
    """A file beside the model that is trained further."""
    if request.given is None or not Path(request.given_name).is_dir():
        return None
    return read_beside(request.given_name).get(name)


def _features_of(request: TrainRequest) -> Features | None:
    """Vocabularies and statistics of an artifact that is trained further."""
    content = _beside(request, FEATURES_FILE)
    return None if content is None else read_features(content, request.given_name)


def _words_task(request: TrainRequest, made: Any, saved_tokenizer: bytes | None) -> Task:
    """A task of texts. A model that has a tokenizer goes on with it: other ids are other words."""
    train, data = request.train, request.train.data
    # The recipe's word, else what the user's model takes at most.
    context = getattr(made, "context", None)
    if made is None or train.model is not None:
        context = context_of(architecture_of(train))
    elif context is None and hasattr(getattr(made, "config", None), "model_type"):
        context = min(DEFAULT_CONTEXT, num_positions(made.config, DEFAULT_CONTEXT))
    settings = data.model_dump(exclude={"clicks", "graph"})
    tokenizer = _beside(request, TOKENIZER_FILE)
    if tokenizer is not None:
        if "tokens" in data.model_fields_set and data.tokens == "bytes":
            raise RecipeError(
                f"stages[0].train.data.tokens: bytes, but {request.given_name} has a tokenizer of"
                " its own. Leave the key out, or say bpe: then its tokens are taken."
            )
        settings["tokens"] = "bpe"
    return (text_task if train.task == "text" else labelled_task)(
        str(request.data),
        train.batch,
        train.seed,
        context=context if isinstance(context, int) else DEFAULT_CONTEXT,
        **settings,
        evaluation=request.evaluation,
        saved_tokenizer=tokenizer or saved_tokenizer,
    )


def _check_data(task: str, text: str, option: str) -> None:
    """Whether `text` can be data of the task, by its name alone: before a model is loaded."""
    (suffixes, what), generated, path = _DATA[task], f"zoo:{task}", Path(text)
    fault = ""
    if text.startswith("zoo:"):
        fault = "" if text == generated else "there are no such generated data"
    elif not path.exists():
        fault = "there is no such file or folder"
    elif path.is_dir() and task not in ("images", "graph"):
        fault = "is a folder"
    elif path.is_file() and suffixes and path.suffix not in suffixes:
        fault = f"is no {task.removesuffix('s')} data"
    if fault:
        expected = f"task {task} expected {what}, or {generated}"
        raise InputError(f"{option} {text}: {fault}; {expected}.")


def model_of(train: Train, task: Task, *, is_cut: bool = False) -> nn.Module:
    """The user's own model, or a fresh one as the recipe names it.

    Args:
        train: the stage.
        task: has the user's model, or the sizes of a fresh one.
        is_cut: ranks will share the rows of its tables before anything else: a fresh model has
            none until then.
    """
    model = task.model
    if model is None:
        with late_rows() if is_cut else contextlib.nullcontext():
            model = build_model(architecture_of(train), task.sizes, _num_cuts(train, is_cut))
    if train.quantize_tables is not None:
        quantize(train.quantize_tables, model)
    if task.adopt is not None:
        task.adopt(model)
    return model


def _num_cuts(train: Train, is_cut: bool) -> int:
    """Into how many equal parts all tables are cut."""
    by_rows = is_cut and train.mesh is not None and train.mesh.tables.shard == "row"
    return train.mesh.data if by_rows and train.mesh is not None else 1


def architecture_of(train: Train) -> Architecture:
    """What the recipe builds; RecipeError if it leaves that to --model."""
    if train.model is None:
        raise RecipeError(
            "stages[0].train.model: is missing. Name what is to be built, such as model: {name:"
            " gpt, width: 128}; 'gossamer train' also takes a model of yours: --model."
        )
    return train.model
