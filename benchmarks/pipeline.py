"""Message-driven against 1F1B: even stages, a bad link, a jittering host; 4 hosts in a box.

    python benchmarks/pipeline.py [--conditions even far full jitter cpu] [--rounds 10] [--svg FILE]
    python benchmarks/pipeline.py --simulate

"far": messages from and to one host take 20 ms more. "full": the cable of one host carries 100
Mbit/s, less than the pipeline would like to send. "jitter": a tenth of one host's work takes 60 ms
more, or 120 ms in a backward.

Hosts are network namespaces with their own links (root on Linux), otherwise processes on the
loopback, where a bad link cannot be had. Stages sleep instead of computing, so that four hosts do
not fight for two cores; "cpu" computes a real GPT on two hosts instead and wants a quiet machine.
All schedules run in turn on the same processes, and the slowest rank's time of a step counts.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from gossamer.report.charts.timeline import timeline_chart
from gossamer.report.page import render_charts
from gossamer.testing import Cluster, Link
from gossamer.testing.fake_network import Conditions, FakeNetwork
from gossamer.training.distributed.pipeline import LayerPipeline, PipelineSettings, Work, WorkSpan
from gossamer.training.distributed.pipeline.message_driven import MessageDriven
from gossamer.training.distributed.pipeline.stage import most_held
from gossamer.zoo import GPT
from support.pipeline_stages import SleepingLayer

MICROBATCHES = 16
FORWARD_SECONDS = 0.010
JITTER_SECONDS = 0.060
MESSAGE_FLOATS = 64 * 1024  # 256 KiB: 2 ms at 1 Gbit/s, 21 ms at 100 Mbit/s
FAST_MBIT, FULL_MBIT = 1000.0, 100.0
FAR_MS = 20.0
BAD_HOST = 2
JITTERING_HOST = 1
CONTENDERS = {
    "1f1b": PipelineSettings(MICROBATCHES, "1f1b"),
    **{
        f"messages +{slack}": PipelineSettings(MICROBATCHES, "message-driven", slack=slack)
        for slack in (0, 1, 2, 4)
    },
}


def num_hosts(condition):
    return 2 if condition == "cpu" else 4


def links(condition):
    cables = [Link(FAST_MBIT)] * num_hosts(condition)
    if condition == "full":
        cables[BAD_HOST] = Link(FULL_MBIT)
    if condition == "far":
        cables[BAD_HOST] = Link(FAST_MBIT, delay_ms=FAR_MS)
    return cables


def model_of(condition):
    torch.manual_seed(0)
    if condition == "cpu":
        model = GPT(256, width=256, num_heads=4, num_layers=8, context=64)
        ids = torch.randint(0, 256, (MICROBATCHES * 4, 64))
        return model, ids, lambda out, y: cross_entropy(out.flatten(0, 1), y.flatten())
    jitter = JITTER_SECONDS if condition == "jitter" else 0.0
    layers = [SleepingLayer(FORWARD_SECONDS, jitter * (i == JITTERING_HOST)) for i in range(4)]
    return (
        nn.Sequential(*layers),
        torch.randn(MICROBATCHES, MESSAGE_FLOATS),
        lambda out, _: out.sum(),
    )


def sleepers(pipeline):
    for module in pipeline.modules.values():
        yield from (layer for layer in module.modules() if isinstance(layer, SleepingLayer))


def work(condition, rounds, folder):
    """One rank: all schedules in turn; seconds and spans into `folder`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pipelines = {}
    for name, settings in CONTENDERS.items():
        model, x, loss = model_of(condition)
        example = x[: len(x) // MICROBATCHES]
        pipelines[name] = LayerPipeline(model, loss, (example,), settings)
        pipelines[name].step(x, target=x)
    seconds, spans = {name: [] for name in pipelines}, {}
    for turn in range(rounds):
        for name, pipeline in pipelines.items():
            for layer in sleepers(pipeline):
                layer.restart(turn)
            dist.barrier()
            start = time.perf_counter()
            pipeline.step(x, target=x)
            took = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            seconds[name].append(float(took))
            spans[name] = pipeline.spans
    found = {"seconds": seconds, "spans": spans}
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def measure(condition, rounds):
    """Seconds of every step by schedule, and all spans of the last one."""
    cables = links(condition)
    with tempfile.TemporaryDirectory() as folder, Cluster(len(cables), cables) as cluster:
        command = [sys.executable, __file__, "--work", condition, "--rounds", str(rounds)]
        ended = cluster.run([*command, "--folder", folder], timeout_seconds=900)
        for one in ended:
            if one.exit_code:
                sys.exit(one.output)
        ranks = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
        if condition in ("far", "full") and not cluster.isolated:
            sys.exit("a bad link needs namespaces: run as root on Linux")
    spans = {
        name: [WorkSpan(*span) for rank in ranks for span in rank["spans"][name]]
        for name in CONTENDERS
    }
    return ranks[0]["seconds"], spans


class FixedOrder:
    """1F1B as decisions on the fake network."""

    def __init__(self, stage, num_stages, num_microbatches):
        warm_up = min(num_microbatches, num_stages - stage)
        order = [Work("forward", k) for k in range(warm_up)]
        for k in range(num_microbatches):
            order.append(Work("backward", k))
            if warm_up + k < num_microbatches:
                order.append(Work("forward", warm_up + k))
        self._order = order[::-1]
        self._here = {work for work in order if stage == 0 and work.direction == "forward"}
        self._is_last = stage == num_stages - 1

    @property
    def finished(self):
        """Whether nothing is left to do."""
        return not self._order

    def arrive(self, work):
        """Note a message."""
        self._here.add(work)

    def start(self):
        """The next work of the order, if its message is there."""
        if not self._order:
            return None
        work = self._order[-1]
        own = self._is_last and work.direction == "backward"
        return self._order.pop() if own or work in self._here else None


def conditions(condition, seed):
    """The same conditions in virtual time; links have delays there and no limit."""

    def duration(stage, direction, microbatch, _):
        late = 0.0
        if condition == "jitter" and stage == JITTERING_HOST:
            drawn = random.Random(f"{seed} {direction} {microbatch}").random()  # noqa: S311
            late = JITTER_SECONDS * (drawn < 0.1)
        return (FORWARD_SECONDS + late) * (1 if direction == "forward" else 2)

    def delay(stage, direction, microbatch, _):
        ends = (stage, stage + (1 if direction == "forward" else -1))
        far = FAR_MS / 1e3 if condition == "far" and BAD_HOST in ends else 0.0
        return far + MESSAGE_FLOATS * 32 / (FAST_MBIT * 1e6)

    return Conditions(duration, delay)


def simulate(condition, rounds):
    """Seconds of every step by schedule, and all spans of the last one, in virtual time."""
    seconds, spans = {name: [] for name in CONTENDERS}, {}
    for name, settings in CONTENDERS.items():
        for seed in range(rounds):
            if name == "1f1b":
                stages = [FixedOrder(stage, 4, MICROBATCHES) for stage in range(4)]
            else:
                slack = settings.slack
                stages = [MessageDriven(stage, 4, MICROBATCHES, slack) for stage in range(4)]
            network = FakeNetwork(stages, conditions(condition, seed), seed)
            seconds[name].append(network.run())
        spans[name] = network.spans
    return seconds, spans


def show(condition, seconds, spans):
    """A table row per schedule: median, spread, how often 1F1B, most microbatches held."""
    print(f"\n{condition}: load {os.getloadavg()[0]:.1f}")
    print("| schedule | median ms | spread ms | 1F1B / it | range over rounds | most held |")
    print("|---|---|---|---|---|---|")
    for name, taken in seconds.items():
        ratios = sorted(a / b for a, b in zip(seconds["1f1b"], taken, strict=True))
        stages = sorted({span.stage for span in spans[name]})
        held = "/".join(str(most_held(spans[name], stage)) for stage in stages)
        median, low, high = statistics.median(taken), min(taken), max(taken)
        print(
            f"| {name} | {median * 1e3:.0f} | {low * 1e3:.0f}-{high * 1e3:.0f} |"
            f" {statistics.median(ratios):.3f} | {ratios[0]:.3f}-{ratios[-1]:.3f} | {held} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conditions", nargs="+", default=["even", "far", "jitter"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--simulate", action="store_true", help="in virtual time, without processes"
    )
    parser.add_argument("--svg", type=Path, help="write the last step of every condition here")
    parser.add_argument("--json", type=Path, help="write the seconds of every step here")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.rounds, arguments.folder)
        return
    charts, steps = [], {}
    for condition in arguments.conditions:
        run = simulate if arguments.simulate else measure
        seconds, spans = run(condition, arguments.rounds)
        show(condition, seconds, spans)
        steps[condition] = seconds
        pair = ("1f1b", "messages +1")
        longest = max(
            max(s.stop for s in spans[name]) - min(s.start for s in spans[name]) for name in pair
        )
        charts += [timeline_chart(spans[name], f"{condition}: {name}", longest) for name in pair]
    if arguments.svg:
        arguments.svg.write_text(render_charts(charts))
    if arguments.json:
        arguments.json.write_text(json.dumps(steps, indent=2))


if __name__ == "__main__":
    main()
