# SPDX-License-Identifier: Apache-2.0
"""The cluster in a box: limits, counters, faults, and that nothing of it is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gossamer.errors import InputError, ResourceError
from gossamer.testing import Cluster, Link, why_no_namespaces
from gossamer.testing.cluster_host import descendants

# Rank 1 connects to rank 0 and sends argv[1] bytes; both print what they know.
SEND = """
import os, socket, sys, time
rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
size = int(sys.argv[1])
if rank == 0:
    server = socket.create_server(address)
    connection, _ = server.accept()
    got, start = 0, time.monotonic()
    while data := connection.recv(1 << 20):
        got += len(data)
    print(got, time.monotonic() - start)
elif rank == 1:
    for attempt in range(200):
        try:
            connection = socket.create_connection(address, timeout=20)
            break
        except OSError:
            time.sleep(0.05)
    connection.sendall(bytes(size))
"""
# Rank 0 answers every byte; rank 1 prints the time of a round trip, or that none came.
PING = """
import os, socket, sys, time
rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    connection, _ = socket.create_server(address).accept()
    while data := connection.recv(1):
        connection.sendall(data)
else:
    for attempt in range(200):
        try:
            connection = socket.create_connection(address, timeout=20)
            break
        except OSError:
            time.sleep(0.05)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print("ready", flush=True)
    connection.settimeout(float(sys.argv[1]))
    while True:
        start = time.monotonic()
        try:
            connection.sendall(b"x")
            connection.recv(1)
        except TimeoutError:
            print("silence", flush=True)
            break
        print(time.monotonic() - start, flush=True)
        time.sleep(0.01)
"""
SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
# A child in a session of its own, as torchrun starts its workers.
NESTED = [sys.executable, "-c", f"import subprocess; subprocess.run({SLEEP}, start_new_session=1)"]


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def alive(process):
    try:
        return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[
            0
        ] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("num_hosts", [0, -1, 201])
def test_a_wrong_number_of_hosts_is_named(num_hosts):
    with pytest.raises(InputError, match="num_hosts"):
        Cluster(num_hosts)


@pytest.mark.parametrize(
    "wrong", [{"rate_mbit": 0}, {"rate_mbit": -5}, {"delay_ms": -1}, {"jitter_ms": float("nan")}]
)
def test_a_wrong_link_is_named(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Link(**wrong)


def test_links_must_be_as_many_as_hosts():
    with pytest.raises(InputError, match="3 hosts"):
        Cluster(3, [Link(), Link()])


def test_loopback_runs_ranks_and_refuses_what_it_cannot_do(make_cluster):
    cluster = make_cluster(2, isolation="loopback")
    received, sent = cluster.run([sys.executable, "-c", SEND, "100000"], timeout_seconds=60)
    assert (received.exit_code, sent.exit_code) == (0, 0), received.errors + sent.errors
    assert received.output.split()[0] == "100000"
    for refused in (cluster.traffic, cluster.heal, lambda: cluster.set_rate(10)):
        with pytest.raises(ResourceError, match="their own network"):
            refused()


def test_exit_code_output_and_errors_are_collected(make_cluster):
    cluster = make_cluster(1, isolation="loopback")
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    (ended,) = cluster.run([sys.executable, "-c", script], timeout_seconds=60)
    assert (ended.exit_code, ended.output, ended.errors) == (3, "out\n", "err\n")
    (missing,) = cluster.run(["no-such-command-of-anybody"], timeout_seconds=60)
    assert missing.exit_code == 127
    assert "no-such-command" in missing.errors


def test_a_command_that_does_not_end_is_ended_with_all_it_started(make_cluster):
    others = descendants(os.getpid())
    cluster = make_cluster(1, isolation="loopback")
    process = cluster.start(0, NESTED)
    until(lambda: "up" in process.output())
    below = set(descendants(os.getpid())) - set(others)
    assert len([p for p in below if alive(p)]) >= 3
    assert process.result(0.1).exit_code == 124
    assert not [p for p in below if alive(p)]


def test_killed_and_stopped_hosts(make_cluster):
    cluster = make_cluster(2, isolation="loopback")
    first, second = cluster.start(0, SLEEP), cluster.start(1, SLEEP)
    until(lambda: "up" in first.output() and "up" in second.output())
    cluster.kill(0)
    assert first.result(5).exit_code == 128 + signal.SIGKILL
    cluster.stop(1)
    states = Path("/proc") / str(descendants(second._process.pid)[0]) / "stat"
    until(lambda: states.read_text().rpartition(")")[2].split()[0] == "T")
    cluster.resume(1)
    until(lambda: states.read_text().rpartition(")")[2].split()[0] == "S")
    assert second.running


@pytest.mark.parametrize("isolation", ["loopback", "namespaces"])
@pytest.mark.parametrize("delay_ms", [0, 1])
def test_nothing_is_left_when_the_maker_is_killed(isolation, delay_ms, tmp_path):
    if isolation == "namespaces" and why_no_namespaces(delay_ms > 0):
        pytest.skip(why_no_namespaces(delay_ms > 0))
    maker = f"""
import sys, time
from gossamer.testing import Cluster, Link
cluster = Cluster(2, Link(100, delay_ms={delay_ms}), isolation={isolation!r})
started = [cluster.start(host, {NESTED!r}) for host in range(2)]
while not all("up" in one.output() for one in started):
    time.sleep(0.05)
print("made", flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", maker], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "made\n"
        below = descendants(process.pid)
        assert len(below) >= 6
        process.kill()
    until(lambda: not [p for p in below if alive(p)])


@pytest.mark.cluster
def test_rate_and_counters(make_cluster):
    cluster = make_cluster(3, Link(80))
    before = cluster.traffic()
    size = 4_000_000
    received, sent, _ = cluster.run([sys.executable, "-c", SEND, str(size)], timeout_seconds=60)
    assert (received.exit_code, sent.exit_code) == (0, 0), received.errors + sent.errors
    got, seconds = received.output.split()
    assert int(got) == size
    # The first 256 KB are free; a busy machine may only make it slower.
    assert float(seconds) > 0.9 * (size - 600_000) * 8 / 80e6
    spent = [now - then for now, then in zip(cluster.traffic(), before, strict=True)]
    assert spent[1].sent_bytes == pytest.approx(size, rel=0.01)
    assert spent[0].received_bytes == pytest.approx(size, rel=0.01)
    assert abs(spent[2].sent_bytes) + abs(spent[2].received_bytes) < 1000


@pytest.mark.cluster
def test_the_rate_can_be_changed(make_cluster):
    cluster = make_cluster(2)
    cluster.set_rate(40)
    cluster.set_rate(40)
    ended = cluster.run([sys.executable, "-c", SEND, "2000000"], timeout_seconds=60)
    assert float(ended[0].output.split()[1]) > 0.9 * 1_400_000 * 8 / 40e6
    cluster.set_rate(None)
    ended = cluster.run([sys.executable, "-c", SEND, "2000000"], timeout_seconds=60)
    assert ended[0].exit_code == 0


@pytest.mark.cluster
@pytest.mark.parametrize("delay_ms", [0, 20])
def test_delay_and_partition(make_cluster, delay_ms):
    cluster = make_cluster(2, Link(delay_ms=delay_ms, jitter_ms=delay_ms / 4))
    _, asking = cluster.start_ranks([sys.executable, "-c", PING, "2"])
    until(lambda: len(asking.output().split()) > 5)
    rounds = [float(word) for word in asking.output().split()[2:-1]]
    assert min(rounds) >= 2 * delay_ms / 1e3
    cluster.partition([1])
    until(lambda: "silence" in asking.output())
    assert asking.result(20).exit_code == 0


@pytest.mark.cluster
def test_a_partition_heals(make_cluster):
    cluster = make_cluster(2, Link(100))
    cluster.partition([0])
    _, asking = cluster.start_ranks([sys.executable, "-c", PING, "30"])
    time.sleep(0.3)
    assert asking.output() == ""
    cluster.heal()
    until(lambda: len(asking.output().split()) > 3)
