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
    """A running llama.cpp with one gguf file."""

    def __init__(self, python, model, threads):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(  # noqa: S603  (our script, the user's environment)
            [str(python), str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        loaded = self._ask({"load": {"model": str(model), "threads": threads}})
        self.resident, self.build = loaded["resident_bytes"], loaded["build"]
        # Whether it was built for this processor, or for any with AVX2.
        self.title = f"llama.cpp Q4_1, {'AVX-512' if 'AVX512' in self.build else 'AVX2'} build"
        # Every tensor is read once per token; embeddings are the head, too.
        self.bytes_per_token = Path(model).stat().st_size
        self.bits = 5.0  # Q4_1: 4 bits and two 16-bit numbers for 32 weights

    @classmethod
    @contextlib.contextmanager
    def start(cls, folder, model, threads):
        """The contender, or None where it is not installed."""
        folders = [Path(folder or ".") / name for name in ("llamacpp", "xllamacpp")]
        python = next((f / "bin/python" for f in folders if (f / "bin/python").exists()), None)
        if python is None:
            print(f"llama.cpp: not installed; peers/setup.sh llamacpp {folder}", file=sys.stderr)
            yield None
            return
        peer = cls(python, model, threads)
        try:
            yield peer
        finally:
            peer._process.stdin.close()
            peer._process.wait(timeout=30)

    def prompt(self):
        """(wall, cpu) of a prompt of 128 tokens."""
        return self._pairs({"prompt": 128})

    def generate(self, after):
        """(wall, cpu) of each of 8 tokens after so many."""
        return self._pairs({"generate": {"after": max(after, 1), "tokens": 8}})

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
