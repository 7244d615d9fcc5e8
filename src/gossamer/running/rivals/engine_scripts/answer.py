# SPDX-License-Identifier: Apache-2.0
"""The side of another engine: one JSON line asks, one JSON line answers.

    {"turn": "fp32"}  ->  {"seconds": 0.0012}      what the handler of "turn" returns
    anything that fails
                      ->  {"error": "..."}

Everything in this folder runs in the engine's own environment: beside the engine only numpy may be
expected, so nothing of the package is imported.
"""

import json
import os
import sys


def answer(handlers):
    """Answer until stdin ends; handlers: what is done with the value of a question, by its name."""
    # Libraries print banners: what they write to stdout goes to stderr, answers to a copy of it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        ((name, value),) = json.loads(line).items()
        try:
            reply = handlers[name](value)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()
