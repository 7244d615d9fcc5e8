# SPDX-License-Identifier: Apache-2.0
"""`gossamer run`: use a model; one file per kind of work."""

from gossamer.cli.run.encode import encode
from gossamer.cli.run.score import score
from gossamer.cli.run.serve import serve
from gossamer.cli.run.text import chat, complete
from gossamer.cli.shell import CommandGroup

run = CommandGroup(
    "run",
    commands=[encode, chat, complete, score, serve],
    short_help="Use a model: encode, chat, complete, score, serve.",
    help="Use a pruned or dense model: vectors of texts, new text, chances of clicks, answers over"
    " HTTP.",
)
