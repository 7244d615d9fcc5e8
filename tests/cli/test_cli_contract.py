# SPDX-License-Identifier: Apache-2.0
"""What every command promises: one JSON document, quiet, exit codes, no torch for --help."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

import gossamer
from gossamer import errors
from gossamer.cli.main import COMMANDS, main
from gossamer.cli.shell import Output
from gossamer.cli.shell.output import explain_failure, write_json
from gossamer.zoo import MLP

RECIPE_COMMANDS = ("list", "show", "copy", "validate", "schema")
RUN_COMMANDS = ("encode", "chat", "complete", "serve")
HELP_PROBE = """
import sys
from gossamer.cli.main import main
code = main({arguments!r})
heavy = [name for name in ("torch", "numpy", "transformers", "rich") if name in sys.modules]
sys.stderr.write(f"heavy={{heavy}} code={{code}}")
"""


@pytest.fixture
def artifact(tmp_path):
    model = MLP((16, 32, 32, 4))
    gossamer.sparsify(model, sparsity=0.8)
    return gossamer.save(model, tmp_path / "artifact")


def invocations(artifact, tmp_path):
    return {
        "doctor": ["doctor"],
        "bench linear": [
            "bench",
            "linear",
            "--shape",
            "16x8",
            "--tokens",
            "2",
            "--sparsity",
            "0.5",
        ],
        "explain": ["explain", artifact],
        "convert": ["convert", artifact, tmp_path / "dense", "--format", "dense"],
        "prune": ["prune", "zoo:mlp", "-o", tmp_path / "pruned", "--sparsity", "0.9"],
    }


@pytest.mark.parametrize("name", ["doctor", "bench linear", "explain", "convert", "prune"])
def test_json_is_one_document_and_quiet_is_silent(name, artifact, tmp_path, gossamer_cli):
    ran = gossamer_cli(*invocations(artifact, tmp_path)[name], "--json", "-q")
    assert ran.code == 0, ran.err
    assert ran.document["schema"] == 1
    assert ran.document["command"] == name
    assert ran.err == ""


@pytest.mark.parametrize("name", ["doctor", "bench linear", "explain", "convert", "prune"])
def test_tables_go_to_stdout_and_progress_to_stderr(name, artifact, tmp_path, gossamer_cli):
    ran = gossamer_cli(*invocations(artifact, tmp_path)[name])
    assert ran.code == 0, ran.err
    assert ran.out.strip()
    assert "done in" in ran.err
    assert "done in" not in ran.out
    assert "\x1b[" not in ran.out + ran.err


@pytest.mark.parametrize("name", ["bench linear", "explain"])
def test_verbose_tells_kernels_memory_and_fallbacks_on_stderr(
    name, artifact, tmp_path, gossamer_cli
):
    words = invocations(artifact, tmp_path)[name]
    ran = gossamer_cli(*words, "--json", "-v")
    assert ran.code == 0, ran.err
    assert ran.document["command"] == name
    assert re.search(r"\[[\d.]+ s, at most \d+ MiB of memory\]", ran.err)
    assert re.search(r"\[kernels \w+, \d+ threads, torch ", ran.err)
    assert "dense" in ran.err
    both = gossamer_cli(*words, "-q", "-v")
    assert both.code == 2
    assert "-q and -v contradict each other" in both.err


def test_what_libraries_print_does_not_reach_stdout_under_json(capsys):
    out = Output("probe", json=True)
    with out.guard_stdout():
        print("noise from a library")
        out.result({"value": float("inf"), "path": ("a", 1)})
    out.flush()
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "schema": 1,
        "command": "probe",
        "value": None,
        "path": ["a", 1],
    }
    assert "noise" in captured.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        *([name, "--help"] for name in COMMANDS),
        ["bench", "linear", "--help"],
        ["bench", "model", "--help"],
        *(["recipe", name, "--help"] for name in RECIPE_COMMANDS),
        *(["run", name, "--help"] for name in RUN_COMMANDS),
    ],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(arguments):
    probe = HELP_PROBE.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stderr == "heavy=[] code=0"
    assert done.stdout.strip()


SINGLE = [name for name in COMMANDS if name not in ("bench", "recipe", "run", "zoo")]


@pytest.mark.parametrize(
    "name",
    [
        *SINGLE,
        "bench linear",
        "bench model",
        *(f"recipe {name}" for name in RECIPE_COMMANDS),
        "zoo list",
        "zoo make",
        *(f"run {name}" for name in RUN_COMMANDS),
    ],
)
def test_help_has_worked_examples(name, gossamer_cli):
    ran = gossamer_cli(*name.split(), "--help")
    assert ran.code == 0
    assert ran.out.split("Examples:")[1].count(f"gossamer {name}") >= 2


def test_no_command_shows_the_help_and_is_a_usage_error(gossamer_cli):
    ran = gossamer_cli()
    assert ran.code == 2
    assert "quickstart" in ran.err


BAD_CALLS = [
    (["nope"], 2, "No such command"),
    (["prunne", "zoo:mlp"], 2, "Did you mean 'prune'"),
    (["prune"], 2, "Missing argument"),
    (["prune", "zoo:mlp", "-o", "x", "--sparsity", "50"], 2, "Write 0.5 for 50 %"),
    (["prune", "zoo:mlp", "-o", "x", "--sparsity", "1.0"], 2, "must be in [0, 1)"),
    (["prune", "zoo:mlp", "-o", "x", "--sparsity", "-0.1"], 2, "must be in [0, 1)"),
    (["prune", "zoo:mlp", "-o", "x", "--sparsity", "nan"], 2, "must be in [0, 1)"),
    (["prune", "zoo:mlp", "-o", "x", "--sparsity", "many"], 2, "is no number"),
    (["prune", "zoo:mlp", "-o", "x"], 2, "sparsity"),
    (["prune", "zoo:mpl", "-o", "x", "--sparsity", "0.5"], 2, "zoo:mlp"),
    (["prune", "zoo:mlp", "-o", "x", "--sparsity", "0.5", "--scorer", "magic"], 2, "magnitude"),
    (["prune", "zoo:mlp", "-o", "x", "--sparsity", "0.5", "--target", "layerz.*"], 2, "layers"),
    (["prune", "nowhere", "-o", "x", "--sparsity", "0.5"], 3, "no such file"),
    (["explain", "nowhere"], 3, "no such file"),
    (["convert", "nowhere", "x"], 3, "no such file"),
    (["bench", "linear", "--shape", "7"], 2, "768x3072"),
    (["bench", "linear", "--shape", "0x7"], 2, "is no shape"),
    (["bench", "linear", "--pattern", "4:2"], 2, "4:2"),
    (["bench", "linear", "--tokens", "0"], 2, "x>=1"),
    (["bench", "model", "zoo:mlp"], 2, "gossamer bench linear"),
    (["quickstart", "--model", "huge"], 2, "tiny"),
    (["run", "encode", "nowhere", "nothing.txt"], 2, "there is no such file"),
    (["run", "serve", "nowhere", "--port", "0"], 3, "no such file"),
    (["run", "serve", "nowhere", "--port", "70000"], 2, "70000"),
    (["recipe", "show", "sparsegtp-50"], 2, "Did you mean 'sparsegpt-50'?"),
    (["recipe", "copy", "nothing-like-it"], 2, "magnitude-50"),
    (["recipe", "validate"], 2, "FILE..."),
]


@pytest.mark.parametrize(
    ("arguments", "code", "text"), BAD_CALLS, ids=lambda value: str(value)[:60]
)
def test_mistakes_give_one_line_and_the_right_code(
    arguments, code, text, gossamer_cli, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    ran = gossamer_cli(*arguments, "--json", "-q")
    assert ran.code == code
    assert text in ran.err
    assert ran.err.startswith("gossamer: ")
    assert "Traceback" not in ran.err
    assert ran.document["error"]["exit_code"] == code
    assert text in ran.document["error"]["message"]
    assert list(tmp_path.iterdir()) == []


def error_classes():
    found = [errors.GossamerError]
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in dict.fromkeys(found) if kind.__module__ == "gossamer.errors"]


def test_every_error_class_maps_to_a_documented_exit_code():
    assert len(error_classes()) >= 13
    for kind in error_classes():
        failure = explain_failure(kind("where: what; expected x, got y. Do z."))
        assert failure.exit_code in (2, 3, 4, 5)
        assert failure.exit_code == kind.exit_code
        assert failure.message == "where: what; expected x, got y. Do z."
        assert failure.type == kind.__name__


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KeyError("x"), 1, "this is a bug"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError("12 GB"), 4, "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 4, "out of memory"),
        (OSError(28, "No space left on device", "/x/y"), 4, "/x/y"),
        (PermissionError(13, "Permission denied", "/x/y"), 4, "permissions"),
    ],
)
def test_other_exceptions(error, code, text):
    failure = explain_failure(error)
    assert failure.exit_code == code
    assert text in failure.message


def test_a_bug_says_so_and_shows_the_traceback_only_with_debug(gossamer_cli, monkeypatch):
    def broken():
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("gossamer.cli.doctor.health.run_checks", broken)
    ran = gossamer_cli("doctor")
    assert ran.code == 1
    assert "this is a bug of gossamer (ZeroDivisionError: oops)" in ran.err
    assert "--debug" in ran.err
    assert "Traceback" not in ran.err
    assert "Traceback" in gossamer_cli("doctor", "--debug").err


def test_ctrl_c_exits_with_130(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer.cli.main", "bench", "linear"]
        + ["--shape", "512x512"] * 40,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GOSSAMER_CACHE": str(tmp_path)},
        # Background jobs of a shell ignore Ctrl-C, and would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # The first progress line says that Python and torch have started.
    line = process.stderr.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert line == "timing layers ...\n"
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err
    assert out == ""


PROGRESS_PROBE = """
import time
from gossamer.cli.shell.output import Output
out = Output("probe")
with out.stage("working", total=3) as stage:
    for _ in range(3):
        time.sleep(0.15)
        stage.advance()
with out.stage("resting"):
    time.sleep(0.1)
out.result({}, "the result")
out.flush()
"""


def run_on_terminal(**variables):
    """Everything the probe writes to a pseudo-terminal."""
    master, slave = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRESS_PROBE],
        stdout=slave,
        stderr=slave,
        stdin=slave,
        env={**environment, "TERM": "xterm", **variables},
    )
    os.close(slave)
    written = b""
    # Linux ends the stream of a closed pseudo-terminal with an error.
    with contextlib.suppress(OSError):
        while part := os.read(master, 4096):
            written += part
    os.close(master)
    assert process.wait(timeout=60) == 0
    return written.decode()


def colours(text):
    # 30-49 and 90-107 are colours; other sequences move the cursor or set bold.
    codes = [
        int(code) for found in re.findall(r"\x1b\[([\d;]+)m", text) for code in found.split(";")
    ]
    return [code for code in codes if 30 <= code < 50 or 90 <= code < 108]


def test_a_terminal_gets_a_live_line():
    written = run_on_terminal()
    assert "\x1b[2K" in written
    assert "working ..." not in written
    assert "the result" in written
    assert colours(written)


def test_no_color_is_honoured():
    written = run_on_terminal(NO_COLOR="1")
    assert "\x1b[2K" in written
    assert not colours(written)


def test_a_pipe_gets_plain_lines():
    done = subprocess.run(
        [sys.executable, "-c", PROGRESS_PROBE], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "the result\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "working ..."
    assert lines[1].startswith("working: done in")
    assert lines[2] == "resting ..."


def test_long_work_on_a_pipe_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr("gossamer.cli.shell.output.PLAIN_SECONDS", 0.0)
    with Output("probe").stage("working", total=4) as stage:
        stage.advance()
        stage.advance(2)
    assert "working: 25%, about" in (err := capsys.readouterr().err)
    assert "working: 75%, about" in err


def test_main_returns_zero_for_success(capsys):
    assert main(["--version"]) == 0
    assert gossamer.__version__ in capsys.readouterr().out


def test_write_json_refuses_nothing_it_can_show(capsys, tmp_path):
    write_json("x", {"path": tmp_path, "nan": float("nan"), "deep": {1: [True, None]}})
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
        "command": "x",
        "path": str(tmp_path),
        "nan": None,
        "deep": {"1": [True, None]},
    }
