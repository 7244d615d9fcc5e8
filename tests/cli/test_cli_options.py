# SPDX-License-Identifier: Apache-2.0
"""The command line is an interface: a new or lost option must be meant."""

import click

from gossamer.cli.main import COMMANDS, cli

COMMON = ["--debug", "--help", "--json", "--quiet", "--verbose", "-q", "-v"]
TEXT = [
    *("MODEL", "--context", "--dtype", "--head-dtype", "--max-tokens", "--seed", "--temperature"),
    *("--special-tokens", "--threads", "--top-k", "--top-p", "--attention", "--kv"),
]
GOLDEN = {
    "quickstart": ["--model", "--out", "--sparsity"],
    "shrink": [
        *("MODEL", "--also", "--budget", "--data", "--engines", "--max-bytes", "--max-latency"),
        *(
            "--length",
            "--max-loss",
            "--metric",
            "--no-engines",
            "--out",
            "--test-data",
            "--valid-data",
            "-o",
        ),
    ],
    "prune": [
        *("MODEL", "--budget", "--format", "--ignore", "--out", "--pattern", "--scorer"),
        *("--sparsity", "--target", "--tokens", "-o"),
        *("--data", "--dry-run", "--eval", "--recipe", "--resume", "--set"),
        "--teacher",
    ],
    "train": [
        *("RECIPE", "--allow-recipe-change", "--data", "--dry-run", "--eval", "--model", "--out"),
        *("--resume", "--set", "--tensorboard", "-o"),
    ],
    "plan": [
        *(
            "RECIPE_OR_MODEL",
            "--batch",
            "--calibrate",
            "--cluster",
            "--data",
            "--keys",
            "--microbatch",
        ),
        *("--out", "--ranks", "--schedule", "--set", "--sparsity", "--staged", "--state"),
        "--tokens",
    ],
    "run complete": ["--prompt", *TEXT],
    "run chat": ["--system", *TEXT],
    "recipe list": [],
    "recipe show": ["NAME"],
    "recipe copy": ["NAME", "FILE"],
    "recipe validate": ["FILE...", "--set"],
    "recipe convert": ["RECIPE", "FILE", "--nearest", "--steps-per-epoch", "--task"],
    "recipe schema": [],
    "run encode": [
        *("MODEL", "FILE", "--batch", "--max-tokens", "--no-normalise", "--normalise", "--out"),
        *("--pooling", "--precision", "--prompt", "--special-tokens", "--threads", "-o"),
    ],
    "run score": ["MODEL", "FILE", "--out", "--precision", "--threads", "-o"],
    "run serve": [
        *(
            "MODEL",
            "--allow-host",
            "--api-key",
            "--compare",
            "--host",
            "--max-batch-tokens",
            "--max-queue",
            "--pooling",
            "--port",
            "--sentences",
        ),
        *("--precision", "--prompt", "--threads", "--timeout", "--attention", "--context", "--kv"),
    ],
    "explain": ["--html", "--profile", "MODEL", "--kernel", "--precision", "--tokens"],
    "bench model": [
        *("MODEL", "--against", "--batch", "--html", "--peers", "--precision", "--seconds"),
        *("--sequence", "--threads"),
    ],
    "bench linear": ["--pattern", "--shape", "--sparsity", "--threads", "--tokens"],
    "convert": ["IN", "OUT", "--format", "--type"],
    "doctor": [],
    "completion": ["SHELL"],
}


def options(command, ctx):
    found = []
    for param in command.get_params(ctx):
        is_argument = isinstance(param, click.Argument)
        found += (
            [param.human_readable_name] if is_argument else [*param.opts, *param.secondary_opts]
        )
    return sorted(found)


def all_commands():
    root = click.Context(cli, info_name="gossamer")
    for name in COMMANDS:
        command = cli.get_command(root, name)
        if isinstance(command, click.Group):
            inner = click.Context(command, parent=root, info_name=name)
            for sub in command.list_commands(inner):
                yield f"{name} {sub}", command.get_command(inner, sub), inner
        else:
            yield name, command, root


def test_options_are_the_golden_list():
    found = {name: options(command, ctx) for name, command, ctx in all_commands()}
    assert found == {name: sorted([*COMMON, *own]) for name, own in GOLDEN.items()}
