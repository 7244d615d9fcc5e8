# SPDX-License-Identifier: Apache-2.0
"""llama.cpp in its own environment: one JSON line asks, one JSON line answers.

    {"load": {"model": "m.gguf", "threads": 1, "context": 1024}} -> {"resident_bytes": 1}
    {"prompt": 128}                            -> {"wall": [s], "cpu": [s]}    128 tokens at once
    {"generate": {"after": 128, "tokens": 8}}  -> {"wall": [s, ...], "cpu": [s, ...]}  one per token

The decode call itself is timed; logits are left where they are. Tokens are the same everywhere:
speed does not depend on them.
"""

import json
import os
import sys
import time

import llama_cpp as lib
import psutil

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
TOKEN = 500


class Model:
    def __init__(self, model, threads, context):
        lib.llama_backend_init()
        settings = lib.llama_model_default_params()
        self._model = lib.llama_model_load_from_file(model.encode(), settings)
        params = lib.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = threads
        self._context = lib.llama_init_from_model(self._model, params)

    def clear(self):
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)

    def decode(self, count):
        tokens = (lib.llama_token * count)(*[TOKEN] * count)
        wall, cpu = time.perf_counter(), time.process_time()
        if lib.llama_decode(self._context, lib.llama_batch_get_one(tokens, count)):
            raise RuntimeError("llama_decode failed")
        lib.llama_get_logits(self._context)  # waits for the result
        return time.perf_counter() - wall, time.process_time() - cpu


def answer(model, question):
    model.clear()
    if "prompt" in question:
        times = [model.decode(question["prompt"])]
    else:
        wanted = question["generate"]
        if wanted["after"]:
            model.decode(wanted["after"])
        times = [model.decode(1) for _ in range(wanted["tokens"])]
    return {"wall": [wall for wall, _ in times], "cpu": [cpu for _, cpu in times]}


model = None
for line in sys.stdin:
    question = json.loads(line)
    try:
        if "load" in question:
            before = psutil.Process().memory_info().rss
            model = Model(**question["load"])
            model.decode(1)
            reply = {"resident_bytes": psutil.Process().memory_info().rss - before}
        else:
            reply = answer(model, question)
    except Exception as error:
        reply = {"error": f"{type(error).__name__}: {error}"}
    answers.write(json.dumps(reply) + "\n")
    answers.flush()
