# SPDX-License-Identifier: Apache-2.0
"""What runs a command on one host of a cluster in a box. A script of its own, without the package.

    python cluster_host.py NAMESPACE LIFELINE COMMAND...

NAMESPACE is a descriptor of a network namespace, or -1. LIFELINE is the reading end of a pipe whose
writer is the process that made the cluster: when it is gone, however that came about, so is
everything the command started. (PDEATHSIG alone fires when the starting *thread* ends, and does not
reach grandchildren.)
"""

import ctypes
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def descendants(root: int) -> list[int]:
    """Processes below `root`, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        born = children.get(waiting.pop(), [])
        found += born
        waiting += born
    return found


def kill_descendants(root: int) -> None:
    """SIGKILL until nobody is left: a process may start another while it is looked for."""
    while left := descendants(root):
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        # Exit codes of adopted orphans are taken, so that they do not stay as zombies.
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def main(arguments: list[str]) -> int:
    """Run the command to its end or the end of the lifeline; its exit code."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespace, lifeline, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    if namespace >= 0:
        if libc.setns(namespace, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(namespace)
    # Orphans of the command come here, so that descendants() finds them.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        os.close(lifeline)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        try:
            os.execvp(command[0], command)  # noqa: S606  (no shell is wanted)
        except OSError as fault:
            os.write(2, f"{command[0]}: {fault}\n".encode())
            os._exit(127)
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(lifeline, 0)  # POLLHUP is always reported
    ready = [descriptor for descriptor, _ in poll.poll()]
    # The command's own exit code, before what it left behind is taken away.
    status = os.waitpid(child, 0)[1] if ended in ready else signal.SIGKILL
    kill_descendants(os.getpid())
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
