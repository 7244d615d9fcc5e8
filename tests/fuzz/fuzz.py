# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile files for every reader: nothing but GossamerErrors, bounded memory and time.

    python tests/fuzz/fuzz.py                        # every reader, 20,000 cases each
    python tests/fuzz/fuzz.py gguf onnx --cases 500 --seed 7
    python tests/fuzz/fuzz.py gguf --only 123        # one case again, with its traceback

A case is made from the seed, the reader and its number alone. Cases run in a child process, whose
memory is limited; one that dies or hangs is told, and the next child goes on behind it.
"""

import argparse
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
sys.path.insert(0, str(Path(__file__).parent))

from line_coverage import LineCoverage
from mutations import Files
from targets import TARGETS, Target

from gossamer.errors import GossamerError

CPU_SECONDS = 10.0  # of one case; wall time would count what else the machine does
WALL_SECONDS = 120.0  # without a sign of life
MAX_MESSAGE = 20_000
_REPORTED = 20
_MEGABYTE = 2**20


class Hang(KeyboardInterrupt):
    """A case took too long; no reader catches this."""


@dataclass
class Result:
    """Of one reader."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[int]] = field(default_factory=dict)
    peak: int = 0
    seconds: float = 0.0

    def add_fault(self, name: str, case: int) -> None:
        self.outcomes["FAULT"] += 1
        self.faults.setdefault(name, []).append(case)


def seeds_of(target: Target) -> list[Files]:
    """The good inputs of a reader, in memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target.seeds(folder)
        return [
            {path.name: path.read_bytes() for path in sorted(seed.iterdir())}
            for seed in sorted(folder.iterdir())
            if seed.is_dir()
        ]


def case_files(target: Target, seeds: list[Files], seed: int, number: int) -> Files:
    """The files of a case; one in a hundred is a seed as it is."""
    draw = random.Random(f"{seed} {target.name} {number}")  # noqa: S311 - no secret
    files = draw.choice(seeds)
    return dict(files) if number % 100 == 0 else target.change(files, draw)


def run_case(target: Target, files: Files, folder: Path) -> str:
    """What came of it: "accepted" or the class of the error; any other exception goes on."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    try:
        target.read(folder)
    except GossamerError as error:
        text = str(error)
        text.encode("utf-8")  # it must be possible to print it
        if not 10 <= len(text) <= MAX_MESSAGE:
            raise AssertionError(f"a message of {len(text)} characters") from error
        return type(error).__name__
    return "accepted"


def run(target: Target, numbers: range, seed: int, jobs: int, coverage: LineCoverage) -> Result:
    """All cases of a reader, in `jobs` children at a time."""
    result, begin, seeds = Result(), time.monotonic(), seeds_of(target)

    def part(share: range) -> None:
        number = share.start
        while number < share.stop:
            number = _child(target, seeds, seed, range(number, share.stop), result, coverage)

    width = -(-len(numbers) // jobs)
    shares = [numbers[i : i + width] for i in range(0, len(numbers), width)]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(part, shares))
    result.seconds = time.monotonic() - begin
    return result


def _child(
    target: Target, seeds: list[Files], seed: int, numbers: range, result: Result,
    coverage: LineCoverage,
) -> int:  # fmt: skip
    """Run cases until the child ends; the number to go on with."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        code = 1
        try:
            _work(target, seeds, seed, numbers, writer, coverage)
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
        finally:
            os._exit(code)
    os.close(writer)
    current, ended = numbers.start - 1, False
    for record in _records(reader, child):
        if "begin" in record:
            current = record["begin"]
        elif "fault" in record:
            result.add_fault(record["fault"], current)
        elif "outcome" in record:
            result.outcomes[record["outcome"]] += 1
        else:
            result.peak = max(result.peak, record["peak"])
            coverage.add(record["seen"])
            ended = record["ended"]
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if ended:
        return numbers.stop
    if os.WIFSIGNALED(status):
        name = f"process ended by {signal.Signals(os.WTERMSIG(status)).name}"
    else:
        name = f"process ended with code {os.waitstatus_to_exitcode(status)}"
    result.add_fault(name, current)
    return current + 1


def _records(reader: int, child: int) -> Iterator[dict[str, Any]]:
    """What a child says; it is killed when it says nothing for too long."""
    held = b""
    while True:
        if not select.select([reader], [], [], WALL_SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
        part = os.read(reader, 1 << 16)
        if not part:
            return
        *lines, held = (held + part).split(b"\n")
        yield from map(json.loads, lines)


def _work(
    target: Target, seeds: list[Files], seed: int, numbers: range, writer: int,
    coverage: LineCoverage,
) -> None:  # fmt: skip
    """In the child: every case, and now and then what came of them."""

    def tell(**record: Any) -> None:
        os.write(writer, json.dumps(record).encode() + b"\n")

    def hang(signum: int, frame: object) -> None:
        raise Hang

    signal.signal(signal.SIGPROF, hang)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # packages in Rust print what they panic about
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108
    folder = Path(tempfile.mkdtemp(dir=base))
    # Once as it is: imports and caches are no memory of a case.
    for files in seeds:
        run_case(target, files, folder / "case")
    _limit(target.megabytes)
    peak = 0

    def flush(ended: bool) -> None:
        seen = {name: sorted(lines) for name, lines in coverage.seen.items() if lines}
        tell(peak=peak, seen=seen, ended=ended)

    try:
        for number in numbers:
            tell(begin=number)
            files = case_files(target, seeds, seed, number)
            before = _reset_peak()
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            coverage.on()
            try:
                tell(outcome=run_case(target, files, folder / "case"))
            except BaseException as error:
                tell(fault=_describe(error))
            finally:
                coverage.off()
                signal.setitimer(signal.ITIMER_PROF, 0)
            grown = _peak() - before
            if grown > target.megabytes * _MEGABYTE:
                tell(fault=f"memory grew beyond {target.megabytes} MiB")
            peak = max(peak, grown)
            if number % 500 == 499:
                flush(False)
        flush(True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _describe(error: BaseException) -> str:
    """Class and place: the innermost line of the package, and the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/gossamer/" in frame.filename] or frames
    last = frames[-1]
    places = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
    if last is not own[-1]:
        places += f" < {Path(last.filename).name}:{last.lineno}"
    return f"{type(error).__name__} at {places}"


def _limit(megabytes: int) -> None:
    """Address space: what there is, and some more than a case may take."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = size + (megabytes + 1024) * _MEGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _reset_peak() -> int:
    """Bytes that the process holds; from now on the peak is counted anew."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def show(target: Target, result: Result, coverage: LineCoverage, missed: bool) -> None:
    """One reader's line, and its faults."""
    counts = ", ".join(f"{name} {count}" for name, count in result.outcomes.most_common())
    print(
        f"{target.name:20} {sum(result.outcomes.values()):6} cases in {result.seconds:6.0f} s,"
        f" lines {coverage.percent:5.1f} %, peak +{result.peak / _MEGABYTE:.0f} MiB: {counts}",
        flush=True,
    )
    for name, numbers in sorted(result.faults.items(), key=lambda item: -len(item[1]))[:_REPORTED]:
        print(f"    {len(numbers):5} x {name}, first --only {numbers[0]}", flush=True)
    if missed:
        for file, lines in coverage.missed().items():
            print(f"    not reached in {file}: {lines}", flush=True)


def main() -> int:
    """Run what the command line asks for; 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--only", type=int, help="one case, here, with its traceback")
    parser.add_argument("--keep", type=Path, help="with --only: leave the files there")
    parser.add_argument("--missed", action="store_true", help="lines that no case reached")
    given = parser.parse_args()
    unknown = set(given.readers) - set(TARGETS)
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(TARGETS)}")
    failed = False
    for name in given.readers or TARGETS:
        target = TARGETS[name]
        if given.only is not None:
            files = case_files(target, seeds_of(target), given.seed, given.only)
            with tempfile.TemporaryDirectory() as folder:
                print(run_case(target, files, (given.keep or Path(folder)) / "case"))
            continue
        coverage = LineCoverage(target.functions)
        numbers = range(given.start, given.start + given.cases)
        result = run(target, numbers, given.seed, given.jobs, coverage)
        show(target, result, coverage, given.missed)
        failed |= bool(result.faults)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
