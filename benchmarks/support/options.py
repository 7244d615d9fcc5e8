# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share on the command line and in their output."""

import argparse
import json
import os
import sys
from pathlib import Path

import torch

from gossamer import settings
from gossamer.cli.shell.output import console
from gossamer.report import describe_machine


def parser(description, several_threads=False):
    """--json, --quick, --threads (or several of them), --seconds and --peers."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="one JSON document to FILE, or to stdout instead of the tables",
    )
    made.add_argument("--quick", action="store_true", help="fewer cases, less time for each")
    if several_threads:
        made.add_argument("--threads", type=int, nargs="+")
    else:
        made.add_argument("--threads", type=int, default=1)
    made.add_argument("--seconds", type=float, help="time per race; more gives steadier minima")
    made.add_argument(
        "--peers",
        type=Path,
        default=settings.peers_dir(),
        metavar="DIR",
        help="environments of other engines, see benchmarks/peers/setup.sh (%(default)s)",
    )
    return made


def shape(text):
    """`768x3072` as (outputs, inputs)."""
    rows, columns = text.split("x")
    return int(rows), int(columns)


def machine():
    """What a reader needs to judge the figures."""
    return {**describe_machine(), "load": f"{os.getloadavg()[0]:.1f}"}


def progress(text):
    """A line for people, kept apart from the result."""
    print(text, file=sys.stderr, flush=True)


def give(arguments, document, *shown):
    """The result: JSON where it was asked for, tables elsewhere."""
    if arguments.json == "-":
        print(json.dumps(document, indent=1))
        return
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    described = document["machine"]
    console().print(
        f"{described['cpu']}, {described['kernels']} kernels, torch {described['torch']},"
        f" {torch.get_num_threads()} thread(s), load {described['load']}",
        highlight=False,
    )
    for part in shown:
        console().print(part, highlight=False)
