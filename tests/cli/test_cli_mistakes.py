# SPDX-License-Identifier: Apache-2.0
"""Wrong command lines: each is told what is wrong, where, and what to type; no model is loaded."""

import json
import shlex
from pathlib import Path

import click
import numpy as np
import pytest
import torch

import gossamer.runs.sources
from gossamer.cli.main import COMMANDS, cli

PAIRS = "text_a,text_b,score\n" + "".join(f"one {i},two {i},{i % 5}\n" for i in range(40))
CONSTANT = "text_a,text_b,score\n" + "".join(f"one {i},two {i},3\n" for i in range(40))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files of a user who mixes things up, and a model that must never be loaded."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("hello world\n" * 30)
    Path("file").write_text("x")
    Path("full").mkdir()
    Path("full/thing.txt").write_text("x")
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    Path("good.csv").write_text(PAIRS)
    Path("constant.csv").write_text(CONSTANT)
    Path("nan.csv").write_text(PAIRS + "a,b,nan\n")
    Path("twice.csv").write_text(PAIRS.replace("score", "score,score"))
    Path("commas.csv").write_text("text\nhello, world\n")
    Path("semicolons.csv").write_text("text_a;text_b;score\na;b;1\n")
    Path("few.csv").write_text("text_a,text_b,score\na,b,1\nc,d,2\n")
    Path("utf16.csv").write_bytes(PAIRS.encode("utf-16"))
    torch.save({"w": torch.zeros(2)}, "model.pt")
    Path("model.pkl").write_bytes(b"\x80\x04}.")
    np.savez("arrays.npz", x=np.zeros(2))
    Path("bare.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")

    def never(*arguments, **settings):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(gossamer.runs.sources, "load_telling", never)
    return tmp_path


# A command line and a part of the answer that says what is wrong, where or what to do.
LINES = """
prune | Missing argument MODEL
prune model | Missing option -o (artifact folder)
prune model | gossamer prune model -o OUT
prune model 0.9 | Did you mean --sparsity 0.9?
prune model 90% -o out | Did you mean --sparsity 90%?
prune model out | Did you mean -o out?
prune model -o out | --sparsity: is missing
prune model -o out --sparsity | --sparsity needs a value behind it
prune model --sparsity -o out | --sparsity needs a value, but the next word is the option -o
prune model -o --sparsity 0.9 | -o needs a value, but the next word is the option --sparsity
prune model -o '' | -o needs a value
prune model -o out --sparsity 90 | Write 0.9 for 90 %, or 90%
prune model -o out --sparsity 1 | 1 is the whole
prune model -o out --sparsity 100% | must be in [0, 1), got 100%
prune model -o out --sparsity 0,9 | '0,9' is no number; it must be in [0, 1), as in 0.9 or 90%
prune model -o out --sparsity -0.5 | must be in [0, 1), got -0.5
prune model -o out --sparsity nan | 'nan' is no number
prune model -o out --sparsty 0.9 | Did you mean --sparsity?
prune model -o out --sparsity 0.5 --scorer magnitud | --scorer: unknown method 'magnitud'
prune model -o out --sparsity 0.5 --budget globl | --budget: unknown budget 'globl'
prune model -o out --pattern 2-4 | --pattern: expected two numbers N:M
prune model -o out --recipe train-rigl | gossamer train RECIPE --data DATA -o out
prune model -o out --recipe sparsegpt-50 | needs calibration data. Give a text: --data FILE
prune model -o file --sparsity 0.5 | file: exists and is not a directory
prune model -o full --sparsity 0.5 | full: exists and is not a gossamer artifact
prune model -o file/x --sparsity 0.5 | is a file, not a folder
prune model -o /proc/x --sparsity 0.5 | nothing can be made in /proc
prune model -o out --sparsity 0.5 --data no.txt | --data no.txt: there is no such file
prune model -o out --sparsity 0.5 --data full | --data full: is a folder, not a file
prune model -o out --sparsity 0.5 --data arrays.npz | --data arrays.npz: expected a file that ends
prune model -o out --sparsity 0.5 --data constant.csv | all 40 pairs have the score 3
prune model -o out --sparsity 0.5 --data nan.csv | --data nan.csv:42: score is nan
prune model -o out --sparsity 0.5 --data twice.csv | --data twice.csv:1: has 2 columns 'score'
prune model -o out --sparsity 0.5 --data commas.csv | commas.csv:2: has 2 cells
prune model -o out --sparsity 0.5 --data semicolons.csv | Cells are separated by ';' here
prune model -o out --sparsity 0.5 --data utf16.csv | is not UTF-8 text but UTF-16
prune model -o out --sparsity 0.5 --data good.csv --eval no.csv | --eval no.csv: there is no such
prune model -o out --sparsity 0.5 --eval constant.csv | --eval constant.csv: all 40 pairs
prune model -o file/x --sparsity 0.5 --data good.csv --dry-run | is a file, not a folder
prune model -o out --sparsity 0.5 --teacher no | no: there is no such file or directory
prune model.pt -o out --sparsity 0.5 | model.pt: is a checkpoint of torch.save, a pickle
prune model.pt -o out --sparsity 0.5 | torch.load('model.pt', weights_only=True)
prune model.pkl -o out --sparsity 0.5 | model.pkl: is a pickle, which may run any code
prune text.txt -o out --sparsity 0.5 | text.txt: is a text file, not a model
prune arrays.npz -o out --sparsity 0.5 | data, not a model. Give it as --data
prune full -o out --sparsity 0.5 | is a folder without a model: it holds 'thing.txt'
prune bare.safetensors -o out --sparsity 0.5 | Put it into a folder with the config.json
prune no -o out --sparsity 0.5 | no: there is no such file or directory
prune zoo:no -o out --sparsity 0.5 | expected one of zoo:mlp
shrink model | --data (text, JSON lines
shrink model | gossamer shrink model --data FILE -o OUT
shrink model --data good.csv -o out --max-loss 1 | Write 0.01 for 1 %, or 1%
shrink model --data good.csv -o out --max-loss one | 'one' is no number; it must be in (0, 10]
shrink model --data good.csv -o out --max-loss 0 | got 0
shrink model --data good.csv -o out --max-bytes 40mb | Did you mean 40MB?
shrink model --data good.csv -o out --max-latency 5 | one of the units 'ms', 's', 'us', as in 5ms
shrink model --data good.csv -o file | file: exists and is not a directory
shrink model --data good.csv -o file/x | is a file, not a folder
shrink model --data no.csv -o out | --data no.csv: there is no such file
shrink model --data constant.csv -o out | --data constant.csv: all 40 pairs have the score 3
shrink model --data nan.csv -o out | --data nan.csv:42: score is nan
shrink model --data few.csv -o out | 2 samples are too few
shrink model --data good.csv --valid-data no.csv -o out | --valid-data no.csv: there is no such
shrink model --data good.csv -o out --metric accuracy | --metric accuracy: expected module:function
shrink model --data good.csv -o out --also no | no: there is no such file or directory
convert text.txt out | text.txt: is a text file, not a model
convert model.pt out | model.pt: is a checkpoint of torch.save, a pickle
convert model | Missing argument OUT
convert model -o out | gossamer convert IN OUT
convert model file/x | is a file, not a folder
convert model full | full: exists and is not a gossamer artifact
train | Missing argument RECIPE
train train-rigl -o out | --data zoo:images for generated ones
train train-rigl -o out --data zoo:images --steps 10 | --set steps=VALUE
train train-rigl -o file/x --data zoo:images --model model | is a file, not a folder
train train-rigl -o out --data no.npz --model model | --data no.npz: there is no such file
train train-rigl -o out --data text.txt --model model | --data text.txt: is no image data
train train-rigl -o out --data zoo:text --model model | there are no such generated data
train train-gpt -o out --data full --model model | --data full: is a folder
train magnitude-50 -o out --data zoo:images | Prune with 'gossamer prune'
run | encode
run encod model text.txt | Did you mean 'encode'? There are
run encode model | Missing argument FILE
run encode model no.txt | no.txt: there is no such file
run encode model text.txt -o vectors.txt | expected a file that ends with .npy or .jsonl
run encode model text.txt -o file/v.npy | is a file, not a folder
run encode model.pt text.txt | model.pt: is a checkpoint of torch.save, a pickle
run complete model hello | Did you mean --prompt hello?
run complete model --prompt x --top-p 2 | must be in (0, 1], got 2
explain text.txt | text.txt: is a text file, not a model
explain model --profile --html file/x.html | is a file, not a folder
bench linear --sparsity 95 | Write 0.95 for 95 %, or 95%
bench linear --shape 768 | expected outputs x inputs
plan gpt3-xl --out file/x.html | is a file, not a folder
quickstart 0.9 | Did you mean --sparsity 0.9?
quickstart --out file/x | is a file, not a folder
recipe show | Missing argument NAME
doctor extra | 'extra' belongs to no argument and no option
frobnicate | There are quickstart, shrink, prune
"""
TABLE = [line.split(" | ", 1) for line in LINES.strip().splitlines()]


@pytest.mark.parametrize(("line", "sentence"), TABLE, ids=[f"{a} ({b[:12]})" for a, b in TABLE])
def test_an_answer_says_what_is_wrong(gossamer_cli, folder, line, sentence):
    before = sorted(folder.rglob("*"))
    ran = gossamer_cli(*shlex.split(line))
    assert ran.code in (2, 3, 4), ran.err
    assert sentence in ran.err
    assert "Traceback" not in ran.err
    assert "loaded" not in ran.err
    # No run folder, no probe, no half of an artifact.
    assert [path for path in sorted(folder.rglob("*")) if "cache" not in str(path)] == before


def leaves():
    """Every command with its words."""
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            yield from (([name, child], command.commands[child]) for child in command.commands)
        else:
            yield [name], command


def flags(command):
    return {
        flag: param
        for param in command.params
        if isinstance(param, click.Option)
        for flag in param.opts
    }


EVERY = [(words, command) for words, command in leaves()]


@pytest.mark.parametrize(("words", "command"), EVERY, ids=[" ".join(w) for w, _ in EVERY])
def test_every_option_of_every_command(gossamer_cli, folder, words, command):
    """No value, another option for a value, a misspelling, a word too many, nothing at all."""
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    given = [*words, *["x"] * len(arguments)]
    known = flags(command)
    wrong = [([*given, "--no-such-thing"], "--no-such-thing")]
    if all(param.nargs == 1 for param in arguments):
        wrong.append(([*given, "y"], "'y' belongs to no argument"))
    for flag, param in known.items():
        if len(flag) > 4:
            wrong.append(([*given, f"{flag[:-2]}{flag[-1]}{flag[-2]}x"], "there is no option"))
        if not param.is_flag:
            wrong.append(([*given, flag], f"{flag} needs a value"))
            wrong.append(([*given, flag, "--json"], f"{flag} needs a value"))
    required = [p for p in command.params if p.required]
    if required:
        wrong.append((words, "Missing"))
    for line, sentence in wrong:
        ran = gossamer_cli(*line)
        assert ran.code == 2, line
        assert sentence in ran.err, line
        assert "--help" in ran.err, line
        assert "Traceback" not in ran.err


def test_all_fractions_are_read_alike():
    from gossamer.cli.options import Fraction

    names = {"sparsity", "max_loss", "top_p"}
    found = {
        param.name.replace("sparsities", "sparsity"): type(param.type)
        for _, command in leaves()
        for param in command.params
        if isinstance(param, click.Option)
        if isinstance(param.type, Fraction) or (param.name or "") in names
    }
    assert set(found) == names
    assert set(found.values()) == {Fraction}


@pytest.mark.parametrize(
    ("text", "number"), [("90%", 0.9), ("0.9", 0.9), (".9", 0.9), ("7%", 0.07), ("1e-1", 0.1)]
)
def test_percentages_are_understood(text, number):
    from gossamer.cli.options import SPARSITY

    assert SPARSITY.convert(text, None, None) == number


def test_percentages_are_understood_in_overrides(gossamer_cli):
    ran = gossamer_cli("recipe", "validate", "magnitude-50", "--set", "sparsity=90%", "--json")
    assert ran.code == 0
    ran = gossamer_cli("recipe", "validate", "magnitude-50", "--set", "sparsity=190%")
    assert ran.code == 2


def test_a_wrong_line_with_json_is_one_document(gossamer_cli, folder):
    ran = gossamer_cli("prune", "model", "0.9", "--json")
    assert json.loads(ran.out)["error"]["exit_code"] == 2
