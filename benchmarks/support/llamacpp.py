# SPDX-License-Identifier: Apache-2.0
"""llama.cpp as a contender: a process in its own environment, asked for one turn at a time."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

_SCRIPT = Path(__file__).resolve().parent.parent / "peers" / "run_llamacpp.py"


class LlamaCpp:
    """A llama.cpp process, with one gguf file where it is to run one."""

    def __init__(self, python, threads):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._threads = threads
        self._process = subprocess.Popen(  # noqa: S603  (our script, the user's environment)
            [str(python), str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def load(self, model, title="Q4_1", bits=5.0, context=None):
        """Open a file; Q4_1 has 4 bits and two 16-bit numbers for 32 weights."""
        loaded = self._ask(
            {"load": {"model": str(model), "threads": self._threads, "context": context}}
        )
        self.resident, self.build = loaded["resident_bytes"], loaded["build"]
        # Whether it was built for this processor, or for any with AVX2.
        build = "AVX-512" if "AVX512" in self.build else "AVX2"
        self.title = f"llama.cpp {title}, {build} build"
        # Every tensor is read once per token; embeddings are the head, too.
        self.bytes_per_token = Path(model).stat().st_size
        self.bits = bits

    @classmethod
    @contextlib.contextmanager
    def start(cls, folder, model, threads, **named):
        """The contender, or None where it is not installed; model None: no file is open."""
        folders = [Path(folder or ".") / name for name in ("llamacpp", "xllamacpp")]
        pythons = [f / "bin/python" for f in folders if any(f.glob("lib/*/site-packages/*llama*"))]
        if not pythons:
            print(f"llama.cpp: not installed; peers/setup.sh llamacpp {folder}", file=sys.stderr)
            yield None
            return
        peer = cls(pythons[0], threads)
        try:
            if model is not None:
                peer.load(model, **named)
            yield peer
        finally:
            peer._process.stdin.close()
            peer._process.wait(timeout=30)

    def quantise(self, model, out, type):
        """Write `model` with weights of another llama_ftype."""
        self._ask({"quantise": {"model": str(model), "out": str(out), "type": type}})

    def likelihood(self, ids_NT):
        """Sum of negative log-likelihoods of all but the first token of every window."""
        return self._ask({"likelihood": ids_NT.tolist()})["sum"]

    def prompt(self):
        """(wall, cpu) of a prompt of 128 tokens."""
        return self._pairs({"prompt": 128})

    def read(self, count, new=0):
        """(wall, cpu) of a prompt of so many tokens and of each new one behind it."""
        return self._pairs({"read": count, "new": new})

    def generate(self, after):
        """(wall, cpu) of each of 8 tokens after so many."""
        return self._pairs({"generate": {"after": max(after, 1), "tokens": 8}})

    def batches(self, before, ids):
        """(wall, cpu) of each list of tokens, behind the same ones."""
        return self._pairs({"batches": {"before": before, "ids": ids}})

    def _pairs(self, question):
        answer = self._ask(question)
        return list(zip(answer["wall"], answer["cpu"], strict=True))

    def _ask(self, question):
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "its process ended"}')
        if "error" in answer:
            raise RuntimeError(f"llama.cpp: {answer['error']}")
        return answer
