# SPDX-License-Identifier: Apache-2.0
"""llama.cpp in its own environment: one JSON line asks, one JSON line answers.

    {"load": {"model": "m.gguf", "threads": 1}} -> {"resident_bytes": 1, "build": "CPU : AVX2 ..."}
    {"read": 8000, "new": 8}                   -> {"wall": [s, ...], "cpu": ...}  in parts of 512
    {"prompt": 128}                            -> {"wall": [s], "cpu": [s]}    128 tokens at once
    {"generate": {"after": 128, "tokens": 8}}  -> {"wall": [s, ...], "cpu": [s, ...]}  one per token
    {"batches": {"before": [5, 6], "ids": [[7, 8], ...]}}
                                               -> {"wall": [s, ...], "cpu": [s, ...]}  one per list
    {"likelihood": [[5, 6, 7], ...]}           -> {"sum": 1.0}   negative log, of at most 512 tokens
    {"quantise": {"model": "m.gguf", "out": "n.gguf", "type": 2}} -> {}   type: its llama_ftype

Its C functions are called directly, with their default settings and a context of 512, and only the
decode call is timed. The library is that of llama-cpp-python (built from source for this CPU) or of
xllamacpp (a wheel, built for AVX2). Tokens are the same everywhere: speed does not depend on them.
"""

import ctypes
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
TOKEN = 500


class Settings(ctypes.Structure):
    """What the default settings come in: larger than they are, and passed on as they came."""

    _fields_ = (("content", ctypes.c_uint64 * 64),)


class Batch(ctypes.Structure):
    """llama_batch: tokens of one sequence leave all but the first two empty."""

    _fields_ = (
        ("count", ctypes.c_int32),
        ("tokens", ctypes.c_void_p),
        ("rest", ctypes.c_void_p * 5),
    )


def library():
    """The llama.cpp of this environment."""
    for package, pattern in (("llama_cpp", "lib/libllama.so"), ("xllamacpp", "xllamacpp*.so")):
        found = importlib.util.find_spec(package)
        for file in Path(found.submodule_search_locations[0]).glob(pattern) if found else ():
            return ctypes.CDLL(str(file))
    raise RuntimeError("neither llama-cpp-python nor xllamacpp is installed")


def quantise(model, out, type):
    """Another type for the weights of a file, whatever they are in."""
    lib = library()
    lib.llama_model_quantize_default_params.restype = Settings
    settings = lib.llama_model_quantize_default_params()
    # int32: threads, type, two types of single tensors; then a byte: may be quantised already.
    numbers = ctypes.cast(ctypes.byref(settings), ctypes.POINTER(ctypes.c_int32))
    numbers[0], numbers[1] = 1, type
    ctypes.cast(ctypes.byref(settings), ctypes.POINTER(ctypes.c_bool))[16] = True
    if lib.llama_model_quantize(model.encode(), out.encode(), ctypes.byref(settings)):
        raise RuntimeError("llama_model_quantize failed")


class Model:
    """A gguf file and one sequence."""

    def __init__(self, model, threads, context=None):
        self._lib = lib = library()
        for name in ("model_load_from_file", "init_from_model", "get_memory", "get_logits"):
            getattr(lib, f"llama_{name}").restype = ctypes.c_void_p
        for name in ("model_default_params", "context_default_params"):
            getattr(lib, f"llama_{name}").restype = Settings
        lib.llama_batch_get_one.restype = Batch
        lib.llama_print_system_info.restype = ctypes.c_char_p
        self.build = lib.llama_print_system_info().decode()
        lib.llama_backend_init()
        settings = lib.llama_model_default_params()
        loaded = ctypes.c_void_p(lib.llama_model_load_from_file(model.encode(), settings))
        lib.llama_model_get_vocab.restype = ctypes.c_void_p
        vocab = ctypes.c_void_p(lib.llama_model_get_vocab(loaded))
        self._vocab_size = lib.llama_vocab_n_tokens(vocab)
        settings = lib.llama_context_default_params()
        if context is not None:  # the first number of them
            ctypes.cast(ctypes.byref(settings), ctypes.POINTER(ctypes.c_uint32))[0] = context
        self._context = ctypes.c_void_p(lib.llama_init_from_model(loaded, settings))
        lib.llama_set_n_threads(self._context, threads, threads)

    def clear(self):
        """Forget the sequence."""
        memory = ctypes.c_void_p(self._lib.llama_get_memory(self._context))
        self._lib.llama_memory_clear(memory, True)

    def decode(self, count):
        """(wall, cpu) seconds of so many more tokens."""
        return self.decode_ids([TOKEN] * count)

    def decode_ids(self, ids):
        """(wall, cpu) seconds of these tokens at once."""
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        wall, cpu = time.perf_counter(), time.process_time()
        batch = self._lib.llama_batch_get_one(tokens, len(ids))
        if self._lib.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        self._lib.llama_get_logits(self._context)  # waits for the result
        return time.perf_counter() - wall, time.process_time() - cpu

    def likelihood(self, ids):
        """Negative log-likelihood of all but the first token."""
        self.clear()
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        batch = self._lib.llama_batch_get_one(tokens, len(ids))
        wanted = (ctypes.c_int8 * len(ids))(*[1] * len(ids))
        batch.rest[4] = ctypes.addressof(wanted)
        if self._lib.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        address = self._lib.llama_get_logits(self._context)
        floats = ctypes.c_float * (len(ids) * self._vocab_size)
        logits = np.frombuffer(floats.from_address(address), np.float32)
        logits = logits.reshape(len(ids), -1)[:-1].astype(np.float64)
        largest = logits.max(axis=1)
        totals = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
        return float((totals - logits[np.arange(len(ids) - 1), ids[1:]]).sum())


def answer(model, question):
    """What a question asks for."""
    if "likelihood" in question:
        return {"sum": sum(model.likelihood(ids) for ids in question["likelihood"])}
    model.clear()
    if "batches" in question:
        times = []
        for ids in question["batches"]["ids"]:
            model.clear()
            model.decode_ids(question["batches"]["before"])
            times.append(model.decode_ids(ids))
    elif "read" in question:
        parts = [
            model.decode(min(512, question["read"] - i)) for i in range(0, question["read"], 512)
        ]
        times = [tuple(map(sum, zip(*parts, strict=True)))]
        times += [model.decode(1) for _ in range(question["new"])]
    elif "prompt" in question:
        times = [model.decode(question["prompt"])]
    else:
        wanted = question["generate"]
        model.decode(wanted["after"])
        times = [model.decode(1) for _ in range(wanted["tokens"])]
    return {"wall": [wall for wall, _ in times], "cpu": [cpu for _, cpu in times]}


def resident_bytes():
    """Memory of this process that is not shared with others, files included."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


model = None
for line in sys.stdin:
    question = json.loads(line)
    try:
        if "load" in question:
            before = resident_bytes()
            model = Model(**question["load"])
            model.decode(1)
            reply = {"resident_bytes": resident_bytes() - before, "build": model.build}
        elif "quantise" in question:
            quantise(**question["quantise"])
            reply = {}
        else:
            reply = answer(model, question)
    except Exception as error:
        reply = {"error": f"{type(error).__name__}: {error}"}
    answers.write(json.dumps(reply) + "\n")
    answers.flush()
