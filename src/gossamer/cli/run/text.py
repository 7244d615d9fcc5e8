# SPDX-License-Identifier: Apache-2.0
"""`gossamer run complete` and `gossamer run chat`: text from a pruned language model."""

import sys
from typing import TYPE_CHECKING, Any

from click import Choice, FloatRange, argument, option

from gossamer.cli.options import (
    POSITIVE,
    Fraction,
    attention_option,
    kv_option,
    special_tokens_option,
    threads_option,
)
from gossamer.cli.shell import Output, Verbatim, gossamer_command

if TYPE_CHECKING:
    from gossamer.cli.run.text_model import TextModel

_DTYPES = Choice(["fp32", "bf16", "int8", "int4"])
_COMPLETE = """
gossamer run complete demo:smollm2 --prompt "The capital of France is"
gossamer run complete pruned/ --prompt "Once" --dtype int4 --max-tokens 40
gossamer run complete pruned/ --prompt "Once" --temperature 0.8 --top-p 0.9 --seed 3
gossamer run complete pruned/ --prompt "Once" --context 8192 --kv int8 --attention pages:1024
"""
_CHAT = """
gossamer run chat demo:smollm2
gossamer run chat pruned/ --dtype int4 --temperature 0.7
echo "What is a gosling?" | gossamer run chat demo:smollm2
"""


def _options(command: Any) -> Any:
    for decorate in reversed(
        (
            argument("model"),
            option(
                "--dtype",
                type=_DTYPES,
                default="int8",
                help="What kept weights are stored in.",
            ),
            option(
                "--head-dtype",
                type=_DTYPES,
                help="The same for embeddings and head.  [default: --dtype, at least int8]",
            ),
            kv_option,
            attention_option,
            option("--context", type=POSITIVE, help="Most tokens of prompt and answer."),
            option("--max-tokens", type=POSITIVE, default=200, help="Of an answer."),
            option(
                "--temperature",
                type=FloatRange(min=0),
                default=0.0,
                help="0 takes the likeliest token always.",
            ),
            option("--top-k", type=POSITIVE, help="Draw from so many tokens only."),
            option(
                "--top-p",
                type=Fraction(low_open=True),
                default=1.0,
                help="Draw from the likeliest tokens that add up to this.",
            ),
            option("--seed", type=int, default=0, help="Of the draws."),
            special_tokens_option,
            threads_option,
        )
    ):
        command = decorate(command)
    return command


@gossamer_command("Continue a text.", _COMPLETE)
@_options
@option("--prompt", required=True, help="The text to continue.")
def complete(out: Output, /, prompt: str, **settings: Any) -> None:
    """Continue PROMPT with MODEL, as it is: no chat template.

    MODEL is a gossamer artifact, a local Hugging Face directory or a gguf file of a decoder; it
    must come with its tokenizer.
    """
    model = _open(out, settings)
    text = _tell(out, model, model.writer.prompt_ids(prompt, special_tokens=model.special_tokens))
    out.result({"text": text, **model.measured()}, Verbatim("\n"))


@gossamer_command("Talk to a model.", _CHAT)
@_options
@option("--system", help="What the model is told first.")
def chat(out: Output, /, system: str | None, **settings: Any) -> None:
    """Talk to MODEL, which needs a chat template; an empty line or Ctrl-D ends.

    Keys and values of the talk are kept, so an answer reads only what is new.
    """
    model = _open(out, settings)
    turns = [{"role": "system", "content": system}] if system else []
    while question := _ask(out):
        turns.append({"role": "user", "content": question})
        ids = model.writer.chat_ids(turns, special_tokens=model.special_tokens)
        turns.append({"role": "assistant", "content": _tell(out, model, ids)})
    out.result({"turns": turns, **model.measured()})


def _open(out: Output, settings: dict[str, Any]) -> "TextModel":
    from gossamer.cli.run.text_model import open_model
    from gossamer.patterns.attention.key_rules import parse_key_rules

    keys = parse_key_rules(settings.pop("attention"), settings.pop("kv"))
    with out.stage("loading and packing"):
        model = open_model(say=out.note, keys=keys, **settings)
    out.note(model.summary)
    return model


def _ask(out: Output) -> str:
    if sys.stdin.isatty():
        out.note("> ")
    return sys.stdin.readline().strip()


def _tell(out: Output, model: "TextModel", ids: list[int]) -> str:
    """Show what follows the tokens while it is made, then its speed; the whole text."""
    told = ""
    for piece in model.run(ids):
        told += piece
        if not out.json:
            sys.stdout.write(piece)
            sys.stdout.flush()
    out.note(f"\n{model.speed}")
    return told
