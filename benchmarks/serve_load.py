# SPDX-License-Identifier: Apache-2.0
"""`gossamer run serve` under load: waiting times, errors, and what the process holds afterwards.

    python benchmarks/serve_load.py [--model minilm] [--requests 10000] [--connections 200]
    python benchmarks/serve_load.py --model demo:smollm2 --chat --requests 400 --connections 200

The server is a process of its own on a free port of the loopback; the client shares its machine.
One connection asks alone first, then many at once, each for one request after the other, on a new
connection after every 20. What the process holds is read before, behind a first round under load
that is not counted, at every quarter of the counted one, and at the end: what grows in the first
round and not in the second is no leak. A round ends after --seconds (default 900).
"""

import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from rich.table import Table

from support import options

WORDS = ("the", "a", "dog", "cat", "house", "garden", "runs", "sleeps", "eats", "reads", "small")
REQUESTS_OF_A_CONNECTION = 20


class Server:
    """The command, and what the system knows of its process."""

    def __init__(self, model, threads):
        self.process = subprocess.Popen(  # noqa: S603  (our command)
            [
                *(sys.executable, "-m", "gossamer.cli.main", "run", "serve", model),
                *("--port", "0", "--threads", str(threads)),
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self.url = None
        for line in self.process.stderr:
            options.progress(line.rstrip())
            if match := re.search(r"serving \S+ on (http://\S+)", line):
                self.url = urlsplit(match[1])
                break
        if self.url is None:
            raise SystemExit("the server did not start")

    def holds(self):
        """Memory, descriptors and threads of the process and of those that it started."""
        found = Counter()
        for place in self._family():
            status = (place / "status").read_text()
            found["rss_bytes"] += 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])
            found["threads"] += int(re.search(r"Threads:\s+(\d+)", status)[1])
            found["files"] += len(list((place / "fd").iterdir()))
            found["processes"] += 1
        return dict(found)

    def end(self):
        """Ask it to stop; its exit code."""
        self.process.terminate()
        code = self.process.wait(120)
        self.process.stderr.close()
        return code

    def _family(self):
        own = Path("/proc") / str(self.process.pid)
        children = (own / "task" / own.name / "children").read_text().split()
        # A child belongs to the thread that started it.
        for task in (own / "task").iterdir():
            children += (task / "children").read_text().split()
        return [own, *(Path("/proc") / child for child in dict.fromkeys(children))]


class Round:
    """Some requests, shared by connections; ends early when its time is over."""

    def __init__(self, server, bodies, count, seconds):
        self._server, self._bodies, self._left = server, bodies, count
        self._end = time.monotonic() + seconds
        self.count, self.seconds = count, 0.0
        self.times, self.errors = [], Counter()
        self.quarters = []

    async def run(self, connections):
        """Ask until all is asked."""
        began = time.monotonic()
        await asyncio.gather(*(self._connection(number) for number in range(connections)))
        self.seconds = time.monotonic() - began
        return self

    async def _connection(self, number):
        draw = random.Random(number)  # noqa: S311
        while self._left > 0 and time.monotonic() < self._end:
            try:
                reader, writer = await asyncio.open_connection(
                    self._server.url.hostname, self._server.url.port
                )
            except OSError as error:
                self._left -= 1
                self.errors[type(error).__name__] += 1
                continue
            try:
                for _ in range(REQUESTS_OF_A_CONNECTION):
                    if self._left <= 0 or time.monotonic() >= self._end:
                        break
                    self._left -= 1
                    await self._ask(reader, writer, draw.choice(self._bodies))
            except (OSError, asyncio.IncompleteReadError) as error:
                self.errors[type(error).__name__] += 1
            finally:
                writer.close()

    async def _ask(self, reader, writer, request):
        began = time.perf_counter()
        writer.write(request)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head, re.I)[1])
        await reader.readexactly(length)
        self.times.append(time.perf_counter() - began)
        status = int(head.split()[1])
        if status != 200:
            self.errors[status] += 1
        if len(self.times) % max(1, self.count // 4) == 0:
            self.quarters.append(self._server.holds())

    def summary(self):
        """Figures for people and for --json."""
        ordered = sorted(self.times)
        at = {p: ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))] for p in (50, 99)}
        return {
            "answers": len(ordered),
            "errors": {str(name): count for name, count in self.errors.items()},
            "seconds": self.seconds,
            "per_second": len(ordered) / self.seconds,
            "p50_ms": at[50] * 1e3,
            "p99_ms": at[99] * 1e3,
            "worst_ms": ordered[-1] * 1e3,
        }


def bodies(chat, count=64):
    """Bytes of requests, texts of 3 to 24 words."""
    draw = random.Random(5)  # noqa: S311
    path = "/v1/chat/completions" if chat else "/v1/embeddings"
    found = []
    for _ in range(count):
        text = " ".join(draw.choices(WORDS, k=draw.randint(3, 24)))
        body = {"input": text, "encoding_format": "base64"}
        if chat:
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "seed": 1}
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        found.append(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return found


def measure(server, arguments):
    asked = bodies(arguments.chat)

    def load(count, connections):
        made = Round(server, asked, count, arguments.seconds or 900)
        return asyncio.run(made.run(connections))

    held = {"start": server.holds()}
    idle = load(min(300, arguments.requests), 1)
    options.progress("asked alone")
    load(max(arguments.requests // 5, arguments.connections), arguments.connections)
    time.sleep(2)
    held["warmed up"] = server.holds()
    options.progress("warmed up")
    loaded = load(arguments.requests, arguments.connections)
    for number, holds in enumerate(loaded.quarters[:4], start=1):
        held[f"under load, {number}/4"] = holds
    time.sleep(2)
    held["end"] = server.holds()
    again = load(min(300, arguments.requests), 1)
    rounds = {
        "1 connection": idle.summary(),
        f"{arguments.connections} connections": loaded.summary(),
        "1 connection, afterwards": again.summary(),
    }
    return rounds, held


def main():
    parser = options.parser(__doc__.splitlines()[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--chat", action="store_true", help="for models that write")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.requests = min(arguments.requests, 1000)
    server = Server(arguments.model, arguments.threads)
    try:
        rounds, held = measure(server, arguments)
    finally:
        code = server.end()
    times = Table(title=f"{arguments.model}, {bodies(arguments.chat)[0].split()[1].decode()}")
    for name in ("asked by", "answers", "errors", "per second", "p50 ms", "p99 ms", "worst ms"):
        times.add_column(name, justify="left" if name == "asked by" else "right")
    for name, one in rounds.items():
        errors = ", ".join(f"{count} x {what}" for what, count in one["errors"].items()) or "0"
        shown = (f"{one[key]:.1f}" for key in ("per_second", "p50_ms", "p99_ms", "worst_ms"))
        times.add_row(name, str(one["answers"]), errors, *shown)
    holds = Table(title="what the server holds")
    for name in ("when", "RSS MB", "files", "threads", "processes"):
        holds.add_column(name, justify="left" if name == "when" else "right")
    for name, one in held.items():
        counts = (str(one[key]) for key in ("files", "threads", "processes"))
        holds.add_row(name, f"{one['rss_bytes'] / 1e6:.1f}", *counts)
    document = {"machine": options.machine(), "rounds": rounds, "held": held, "exit_code": code}
    options.give(arguments, document, times, holds, f"exit code of the server: {code}")


if __name__ == "__main__":
    main()
