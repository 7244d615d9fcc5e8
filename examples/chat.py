# SPDX-License-Identifier: Apache-2.0
"""Prune SmolLM2 and talk to it: the model is packed once, every token is one native call.

    python examples/chat.py "What is the capital of France?"

Needs the extras [hf] and [demo]. Pruned by magnitude and by a fifth only, which the model survives
without calibration; `gossamer prune --recipe sparsegpt-50 --data text.txt` goes further.
"""

import sys

import gossamer
from gossamer.cli.demo_models import demo_path
from gossamer.io import load, read_beside
from gossamer.io.text_tokenizer import TextTokenizer
from gossamer.run.decoder import DecoderEngine
from gossamer.run.sampling import Sampling


def main() -> None:
    """Answer the question on the command line."""
    question = " ".join(sys.argv[1:]) or "What is the capital of France?"
    path = demo_path("smollm2")
    model = load(path)
    tokenizer = TextTokenizer(read_beside(path), str(path))
    gossamer.sparsify(model, sparsity=0.2, ignore=["lm_head"])
    engine = DecoderEngine(model, "int8", context=512)
    print(f"{engine.size.bits_per_weight:.2f} bits per weight of the dense model")

    prompt = tokenizer.encode(tokenizer.chat([{"role": "user", "content": question}]), special=True)
    show = tokenizer.decoder()
    sampling = Sampling(temperature=0.3, top_p=0.9, seed=0)
    for token in engine.stream(prompt, 60, sampling, stop=tokenizer.ends):
        print(show(token), end="", flush=True)
    print()


if __name__ == "__main__":
    main()
