# SPDX-License-Identifier: Apache-2.0
"""Contenders that generate text, and the race between them.

A turn is a prompt of 128 tokens, 8 tokens on an empty context and 8 after 128. All contenders make
one in every round. With one thread the figure is CPU time, which other work on the machine disturbs
least; with two it is wall time.
"""

import ctypes
import gc
import statistics
import time

import psutil
import torch

from gossamer.running.decoder import DecoderEngine

CONTEXT, PROMPT, NEW, TOKEN = 1024, 128, 8, 500
KINDS = ("prompt", "empty", "after")


def resident():
    """Bytes of this process after everything that is free has gone back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def timed(call):
    """(wall, cpu) seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


class Gossamer:
    """Ours: a packed engine and one session.

    Args:
        title: in tables.
        make: gives the model, which is freed when it is packed.
        dtype, head: of layers and head.
    """

    def __init__(self, title, make, dtype, head=None):
        before = resident()
        self.title = title
        self.engine = DecoderEngine(make(), dtype, head_dtype=head, context=CONTEXT)
        self.bytes_per_token = self.engine.size.bytes_per_token
        self.bits = self.engine.size.bits_per_weight
        self._session = self.engine.session()
        self._session.prompt([TOKEN])
        self.resident = resident() - before

    def prompt(self):
        """(wall, cpu) of the prompt."""
        self._session.prompt([TOKEN + 1])
        return [timed(lambda: self._session.prompt([TOKEN] * PROMPT))]

    def generate(self, after):
        """(wall, cpu) of every new token."""
        self._session.prompt([TOKEN + 1])
        self._session.prompt([TOKEN] * max(after, 1))
        return [timed(lambda: self._session.append(TOKEN)) for _ in range(NEW)]

    def likelihood(self, ids_NT):
        """Sum of negative log-likelihoods of all but the first token of every window."""
        return sum(
            float(cross_entropy(self.engine.logits(ids_T)[:-1], ids_T[1:])) for ids_T in ids_NT
        )


class Transformers:
    """The dense model in torch, with its own cache."""

    def __init__(self, title, model, dtype):
        self.title = title
        self._model = model.to(dtype)
        self.bytes_per_token = sum(p.numel() * p.element_size() for p in model.parameters())
        self.resident, self.bits = self.bytes_per_token, 8.0 * dtype.itemsize

    def _forward(self, count, cache=None):
        ids = torch.full((1, count), TOKEN)
        return self._model(
            ids, past_key_values=cache, use_cache=True, logits_to_keep=1
        ).past_key_values

    def prompt(self):
        """(wall, cpu) of the prompt."""
        with torch.inference_mode():
            return [timed(lambda: self._forward(PROMPT))]

    def generate(self, after):
        """(wall, cpu) of every new token."""
        with torch.inference_mode():
            cache = self._forward(max(after, 1))
            return [timed(lambda: self._forward(1, cache)) for _ in range(NEW)]


def cross_entropy(logits_TV, ids_T):
    """Summed over the tokens, in fp32."""
    return torch.nn.functional.cross_entropy(logits_TV.float(), ids_T, reduction="sum")


def race(contenders, rounds, threads, read_bytes=96 << 20):
    """Seconds per token of every contender, {title: {kind: [per turn]}}, and a rate of reading.

    That is the best GB/s at which so many bytes were read again and again in between.
    """
    times = {one.title: {kind: [] for kind in KINDS} for one in contenders}
    clock = 1 if threads == 1 else 0
    read = torch.ones(read_bytes // 4)
    rate = 0.0
    for number in range(rounds + 1):
        rate = max(rate, *(read_bytes / 1e9 / timed(read.sum)[clock] for _ in range(5)))
        for one in contenders:
            turn = {"prompt": one.prompt(), "empty": one.generate(0), "after": one.generate(PROMPT)}
            if number == 0:
                continue  # warms up
            for kind, pairs in turn.items():
                share = PROMPT if kind == "prompt" else 1
                times[one.title][kind].append(min(pair[clock] for pair in pairs) / share)
    return times, rate


def rates(seconds):
    """Tokens per second, best and median, of one contender's times."""
    best = {kind: 1 / min(turns) for kind, turns in seconds.items()}
    return best, {kind: 1 / statistics.median(turns) for kind, turns in seconds.items()}
