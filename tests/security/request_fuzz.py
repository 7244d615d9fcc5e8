# SPDX-License-Identifier: Apache-2.0
"""Requests that nobody would send, against a server's application in this process.

Every case is a function of a seed and its number. Whatever is asked, the answer is 2xx or 4xx, in
the one form that errors have. As a script it tries as many as it is told:

    python tests/security/request_fuzz.py --cases 20000 --seed 1
"""

import argparse
import asyncio
import copy
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

CHAT = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi <there>"},
    ],
    "max_tokens": 3,
    "temperature": 0.7,
    "stream": False,
    "logprobs": False,
    "tools": [],
    "response_format": {"type": "text"},
}
COMPLETION = {
    "prompt": "the dog",
    "max_tokens": 3,
    "temperature": 1.0,
    "top_p": 0.9,
    "top_k": 5,
    "seed": 1,
    "stop": ["x"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "n": 1,
}
TEXTS = {"input": ["the dog", "a cat"], "model": None}
EMBEDDINGS = {**TEXTS, "encoding_format": "base64", "user": "me", "dimensions": None}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/embed": TEXTS,
    "/v1/embeddings": EMBEDDINGS,
    "/classify": TEXTS,
    "/v1/models": {},
    "/v1/models/x": {},
    "/health": {},
    "/metrics": {},
    "/no/such/path": TEXTS,
}
# What the first and the second application of `apps_of` serve.
SERVED = (
    ("/embed", "/v1/embeddings", "/classify"),
    ("/v1/completions", "/v1/chat/completions", "/v1/chat/completions"),
)
ODD = [
    *(None, True, False, 0, 1, -1, 2, 0.0, -0.0, 5e-324, 1e-310, 1e-45, 1e308, 1e400, -1e400),
    *(float("nan"), 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400),
    *("", " ", "x", "</s>", "a</s>b", "[SEP]", "\ud800", "\udfff x", "\0", "\u202e", "\ufeff"),
    *("\U00100000</s>", "\U0010fffd", "é" * 50, "x" * 5000, "a </s" + "s>", "1", "NaN", "0"),
    *([], {}, [[]], [None], [1, 2], [1.5], [True], ["x", 1], [["x"]], {"a": 1}, {"type": "text"}),
    [{"type": "text", "text": "x"}],
    [{"role": "user", "content": "x"}] * 3,
    {"role": "tool", "content": None},
]
NAMES = [*COMPLETION, *CHAT, *EMBEDDINGS, "special_tokens", "best_of", "", "\ud800", "__class__"]
PIECES = [b"\xff", b"\0", b"{", b"}", b'"', b"\\u", b"\\ud800", b"[" * 600, b"NaN", b"1e999", b"//"]
PIECES += [b"-", b",", b'"input":', b"\xef\xbb\xbf", b"9" * 5000]


@dataclass
class Answer:
    status: int
    content_type: str
    body: bytes

    def fault(self):
        """What is wrong with this answer; None if nothing is."""
        if not (200 <= self.status < 300 or 400 <= self.status < 500):
            return f"status {self.status}"
        if self.status >= 400:
            error = json.loads(self.body)["error"]
            if error["code"] != self.status or not error["message"]:
                return "an error without message or code"
        elif self.content_type.startswith("application/json"):
            json.loads(self.body)
        elif b"server_error" in self.body:
            return "an error within a stream"
        return None


async def ask(app, method, path, headers, parts):
    """One request, its body in `parts`."""
    waiting = [
        {"type": "http.request", "body": part, "more_body": number + 1 < len(parts)}
        for number, part in enumerate(parts)
    ]
    answer = Answer(0, "", b"")
    forever = asyncio.Event()

    async def receive():
        if not waiting:
            await forever.wait()
        return waiting.pop(0)

    async def send(message):
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.content_type = dict(message["headers"]).get(b"content-type", b"").decode()
        else:
            answer.body += message.get("body", b"")

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "state": {},
    }
    await app(scope, receive, send)
    return answer


def case(seed, number):
    """Method, path, headers and parts of the body of one request to application number % 2."""
    draw = random.Random(f"{seed}/{number}")  # noqa: S311
    own = SERVED[number % len(SERVED)]
    path = draw.choice(own if draw.random() < 0.9 else list(BODIES))
    body = copy.deepcopy(BODIES[path])
    if draw.random() < 0.05:
        body = copy.deepcopy(draw.choice(ODD))
    for _ in range(draw.choice([0, 1, 1, 1, 2, 4])):
        body = mutated(body, draw)
    content = json.dumps(body).encode("utf-8")
    if draw.random() < 0.3:
        content = damaged(content, draw)
    method = "POST" if BODIES[path] else "GET"
    if draw.random() < 0.03:
        method = draw.choice(["GET", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH"])
    size = len(content) if draw.random() < 0.95 else draw.choice([0, 1, 10**9, 10**30])
    headers = [
        (b"host", draw.choice([b"localhost"] * 40 + [b"127.0.0.1:9", b"[::1]:1", b"evil.example"])),
        (b"content-type", draw.choice([b"application/json"] * 40 + [b"text/plain", b"\xff", b""])),
        (b"content-length", str(size).encode()),
    ]
    if draw.random() < 0.05:
        headers.append((draw.choice([b"host", b"expect", b"x\xff", b"authorization"]), b"\xff x"))
    cuts = sorted(draw.randrange(len(content) + 1) for _ in range(draw.choice([0, 0, 1, 3])))
    parts = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    return method, path, headers, parts


def mutated(value, draw):
    """`value` with one place in it changed, left out, renamed or added."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        what = draw.random()
        if what < 0.1:
            del value[name]
        elif what < 0.3:
            value[draw.choice(NAMES)] = copy.deepcopy(draw.choice(ODD))
        else:
            value[name] = mutated(value[name], draw)
        return value
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        value[place] = mutated(value[place], draw)
        return copy.deepcopy(value * draw.choice([1, 1, 1, 0, 3]))
    if isinstance(value, str) and draw.random() < 0.5:
        return value + draw.choice([odd for odd in ODD if isinstance(odd, str)])
    return copy.deepcopy(draw.choice(ODD))


def damaged(content, draw):
    """Bytes that were changed, cut or put in between."""
    place = draw.randrange(len(content) + 1)
    what = draw.random()
    if what < 0.25:
        return content[:place]
    if what < 0.5 and content:
        place = draw.randrange(len(content))
        return content[:place] + bytes([draw.randrange(256)]) + content[place + 1 :]
    if what < 0.6:
        return content.decode("utf-8", "replace").encode(draw.choice(["utf-16", "utf-32"]))
    return content[:place] + draw.choice(PIECES) + content[place:]


class Dice:
    """An engine for the server: draws every token from the same chances, as it was asked to."""

    context = 400

    def __init__(self, vocab_size):
        self._logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(1)) * 8

    def turns(self, ids, options):
        from gossamer.running.decoder.sampling import Sampler

        draw = Sampler(options.sampling)
        for _ in range(min(options.max_new_tokens, 4)):
            yield draw(self._logits)


async def try_cases(apps, seed, numbers):
    """Faults by case, and how often each status came. Apps are asked in turns."""
    faults, statuses = {}, Counter()
    for number in numbers:
        request = case(seed, number)
        try:
            answer = await asyncio.wait_for(ask(apps[number % len(apps)], *request), 60)
            fault = answer.fault()
            statuses[answer.status] += 1
        except Exception as error:
            fault = repr(error)
        if fault:
            faults[number] = (fault, request)
    return faults, statuses


def apps_of(encoder_folder, decoder_folder):
    """Applications of a classifier and of a decoder, by names of folders."""
    from dataclasses import replace

    from gossamer.io import load, read_beside
    from gossamer.running.server import build_app, make_service

    found = []
    for folder in (encoder_folder, decoder_folder):
        service = make_service(load(folder), read_beside(folder), "x")
        if service.writer is not None:
            dice = Dice(service.writer.tokens.vocab_size)
            service = replace(service, writer=replace(service.writer, engine=dice))
        found.append(build_app(service))
    return found


async def run(apps, seed, numbers):
    """The same with the applications' workers started and stopped."""
    async with apps[0].router.lifespan_context(apps[0]), apps[1].router.lifespan_context(apps[1]):
        return await try_cases(apps, seed, numbers)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="one case, by its number")
    chosen = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1] / "running"))
    import text_models

    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / "encoder", Path(folder) / "decoder"]
        for place in folders:
            place.mkdir()
        apps = apps_of(
            text_models.save_classifier(folders[0]), text_models.save_decoder(folders[1])
        )
        numbers = range(chosen.cases) if chosen.only is None else [chosen.only]
        start = time.monotonic()
        faults, statuses = asyncio.run(run(apps, chosen.seed, numbers))
    for number, (fault, request) in list(faults.items())[:20]:
        print(f"case {number}: {fault}: {str(request)[:400]}")
    print(f"{len(numbers)} cases in {time.monotonic() - start:.0f} s, {len(faults)} faults")
    print("answers by status:", dict(sorted(statuses.items())))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
