# SPDX-License-Identifier: Apache-2.0
"""The other side of `template_process.py`: a process that sets messages by a chat template.

It is run as a script, by a Python that has loaded nothing but jinja2, and imports nothing of
gossamer. Limits of the system hold whatever a template contains: memory, time of the CPU should its
parent be gone, and no file can be written. Its environment is the one that transformers gives to
chat templates.

A question and its answer are JSON behind their length in four bytes.
"""

import functools
import json
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

LENGTH = struct.Struct("<I")


def main(stdin: BinaryIO, stdout: BinaryIO, memory_bytes: int) -> None:
    """Answer questions until there are no more."""
    # The last template is kept compiled.
    compiled = functools.lru_cache(maxsize=1)(_environment().from_string)
    # Behind the imports: what they need is no matter of templates.
    for name, value in (("RLIMIT_AS", memory_bytes), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0)):
        _set_limit(name, value)
    while head := stdin.read(LENGTH.size):
        question = json.loads(stdin.read(*LENGTH.unpack(head)))
        # Its parent ends this process earlier. This is for the case that the parent is gone.
        _set_limit("RLIMIT_CPU", int(time.process_time() + question["seconds"]) + 2, hard=False)
        answer = json.dumps(_answer(compiled, question)).encode("ascii")
        stdout.write(LENGTH.pack(len(answer)) + answer)
        stdout.flush()


def _answer(compiled: Callable[[str], Any], question: dict[str, Any]) -> dict[str, Any]:
    try:
        template = compiled(question["template"])
        return {"texts": [_text(template, talk, question) for talk in question["conversations"]]}
    except MemoryError:
        return {"memory": True}
    except Exception as error:
        return {"refused": str(error)[:200] or type(error).__name__}


def _text(template: Any, messages: Any, question: dict[str, Any]) -> str:
    most, pieces, length = question["max_characters"], [], 0
    known = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
    for piece in template.generate(**{**question["variables"], **known}):
        length += len(piece)
        if length > most:
            raise ValueError(f"it makes more than {most} characters of them")
        pieces.append(piece)
    return "".join(pieces)


def _environment() -> Any:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox

    found = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_generation_blocks(), jinja2.ext.loopcontrols],
    )
    found.filters["tojson"] = _to_json
    found.globals.update(
        raise_exception=_raise_exception,
        strftime_now=lambda form: time.strftime(form),
        dict=_Dict(),
        namespace=_namespace(),
    )
    return found


def _generation_blocks() -> Any:
    """`{% generation %}` marks what an assistant says, for training; here it is text like other."""
    import jinja2
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  (as the base class has it)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

        def _said(self, caller: Callable[[], str]) -> str:
            return caller()

    return Generation


def _namespace() -> Any:
    """A namespace of jinja without names that begin with an underscore."""
    import jinja2.utils
    from jinja2.exceptions import SecurityError

    class Namespace(jinja2.utils.Namespace):
        def __init__(*args: Any, **named: Any) -> None:
            self, given = args[0], dict(*args[1:], **named)
            for name in given:
                _check(name)
            jinja2.utils.Namespace.__init__(self, given)

        def __setitem__(self, name: str, value: Any) -> None:
            _check(name)
            super().__setitem__(name, value)

    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"{name!r} may not be set: it begins with an underscore")

    return Namespace


class _Dict:
    """`dict` without anything that leads into Python."""

    def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
        return dict(*args, **named)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """One value for several keys."""
        return dict.fromkeys(*args)


def _raise_exception(message: str) -> None:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes what HTML would read.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _set_limit(name: str, value: int, hard: bool = True) -> None:
    try:
        import resource

        kind = getattr(resource, name)
        most = resource.getrlimit(kind)[1]
        # A limit that is lower already stays.
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, value if hard else most))
    except (ImportError, AttributeError, ValueError, OSError):
        # Windows has no such limits, and macOS refuses some.
        return


if __name__ == "__main__":
    sys.path.extend(sys.argv[2:])
    main(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[1]))
