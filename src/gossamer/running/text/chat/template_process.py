# SPDX-License-Identifier: Apache-2.0
"""Chat templates in a process of their own, which is ended when one takes too long.

A template is a program from a file. Nothing inside Python bounds the time and the memory of a
program, so it runs where the system does; see `template_worker.py`. The process starts with the
first messages, waits for more, and ends with the one that started it.
"""

import json
import os
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gossamer.errors import InputError, ResourceError
from gossamer.running.text.chat.template_worker import LENGTH

RENDER_SECONDS = 10.0
# Address space of the process, where the system can limit it (Linux).
MEMORY_BYTES = 512 << 20
MAX_CHARACTERS = 10_000_000
# A character is at most two escapes of six bytes.
_MAX_ANSWER_BYTES = 12 * MAX_CHARACTERS + 4096
_WORKER = Path(__file__).with_name("template_worker.py")
# What starts Python, and what time it is where we are. Nothing else is a template's business.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TZ")

Conversation = Sequence[Mapping[str, str]]


class TemplateTooSlow(ResourceError):
    """A chat template was stopped because of the time it took."""


class TemplateProcess:
    """Renders one set of conversations at a time; threads may share it.

    Args:
        seconds: for one call, waiting for other threads included; None = RENDER_SECONDS.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = RENDER_SECONDS if seconds is None else seconds
        self._turn = threading.Lock()
        self._worker: _Worker | None = None

    def render(
        self, template: str, conversations: Sequence[Conversation], variables: Mapping[str, str]
    ) -> list[str]:
        """A text for each conversation.

        Raises:
            InputError: the template refuses, or makes too much of them.
            TemplateTooSlow: it takes too long.
        """
        end = time.monotonic() + self._seconds
        if not self._turn.acquire(timeout=self._seconds):
            raise self._too_slow()
        try:
            answer = self._ask(
                {
                    "template": template,
                    "conversations": [[dict(m) for m in talk] for talk in conversations],
                    "variables": dict(variables),
                    "max_characters": MAX_CHARACTERS,
                    "seconds": self._seconds,
                },
                max(0.0, end - time.monotonic()),
            )
        finally:
            self._turn.release()
        if "refused" in answer:
            raise InputError(
                f"messages: the chat template of this model refuses them ({answer['refused']})."
            )
        if "memory" in answer:
            raise InputError(
                "messages: the chat template of this model needs more than"
                f" {MEMORY_BYTES >> 20} MiB for them. Take another model, or put another"
                " chat_template.jinja beside this one."
            )
        return list(answer["texts"])

    def _ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        worker = self._worker
        # A copy of this object in a forked process must not read its parent's answers.
        if worker is None or worker.owner != os.getpid() or worker.process.poll() is not None:
            worker = self._worker = _Worker()
        answer = worker.ask(json.dumps(question).encode("ascii"), seconds)
        if answer is None or "memory" in answer:
            self._worker = None
            worker.end()
        if answer is None and worker.late:
            raise self._too_slow()
        return answer or {"refused": "its process ended without an answer"}

    def _too_slow(self) -> TemplateTooSlow:
        return TemplateTooSlow(
            f"messages: the chat template of this model takes longer than {self._seconds:g} s for"
            " them. Take another model, or put another chat_template.jinja beside this one."
        )


class _Worker:
    """A running process."""

    def __init__(self) -> None:
        self.owner, self.late = os.getpid(), False
        # Isolated and without site: no file of the user, no variable and no package that hooks
        # into the start is read, only the two packages that are named.
        command = [sys.executable, "-I", "-S", "-X", "utf8", str(_WORKER), str(MEMORY_BYTES)]
        try:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603  (our script)
                [*command, *_package_folders()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                # Ctrl-C is for the program that asks.
                start_new_session=True,
            )
        except OSError as error:
            raise ResourceError(
                f"the process for chat templates cannot be started ({error.strerror}). End other"
                " processes, or raise the limit of them."
            ) from error
        self.end = weakref.finalize(self, _end, self.process, self.owner)

    def ask(self, question: bytes, seconds: float) -> dict[str, Any] | None:
        """The answer; None if the process ended, `late` if that was because of the time."""
        to: Any = self.process.stdin
        back: Any = self.process.stdout
        watch = threading.Timer(seconds, self._stop)
        watch.daemon = True
        watch.start()
        try:
            to.write(LENGTH.pack(len(question)) + question)
            to.flush()
            (length,) = LENGTH.unpack(back.read(LENGTH.size))
            answer = json.loads(back.read(length)) if length <= _MAX_ANSWER_BYTES else None
            return answer if isinstance(answer, dict) else None
        except (OSError, struct.error, ValueError):
            # An answer that was cut short is not JSON.
            return None
        finally:
            watch.cancel()

    def _stop(self) -> None:
        self.late = True
        self.process.kill()


def _package_folders() -> list[str]:
    import jinja2
    import markupsafe

    files = (jinja2.__file__, markupsafe.__file__)
    return sorted({str(Path(file).resolve().parent.parent) for file in files if file})


def _end(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() != owner:
        # Of a forked process: the worker belongs to its parent.
        process.returncode = 0
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # a question it did not live to read
                pipe.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()
