# SPDX-License-Identifier: Apache-2.0
"""Prune SmolLM2 and talk to it: the model is packed once, every token is one native call.

    python examples/chat.py "What is the capital of France?" [MODEL]

MODEL is a chat model on disk; without one the packaged SmolLM2 is taken, which needs the extras
[hf] and [demo]. Pruned by magnitude and by a fifth only, which the model survives without
calibration; `gossamer prune --recipe sparsegpt-50 --data text.txt` goes further.
"""

import sys

import gossamer
from gossamer.cli.models import demo_path
from gossamer.io import load, read_beside
from gossamer.running.decoder import GenerationOptions, Sampling
from gossamer.running.text import make_writer


def main() -> None:
    """Answer the question on the command line."""
    question = sys.argv[1] if len(sys.argv) > 1 else "What is the capital of France?"
    path = sys.argv[2] if len(sys.argv) > 2 else demo_path("smollm2")
    model = load(path)
    gossamer.sparsify(model, sparsity=0.2, ignore=["lm_head"])
    writer = make_writer(model, read_beside(path), precision="int8")

    prompt = writer.chat_ids([{"role": "user", "content": question}])
    options = GenerationOptions(60, Sampling(temperature=0.3, top_p=0.9, seed=0), writer.ends)
    pieces = writer.pieces()
    for token in writer.tokens_behind(prompt, options):
        print(pieces.add(token), end="", flush=True)
    print()


if __name__ == "__main__":
    main()
