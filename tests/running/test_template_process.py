# SPDX-License-Identifier: Apache-2.0
"""Chat templates are programs of strangers: right for honest ones, bounded for all."""

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from http_client import wait_for
from transformers.utils import chat_template_utils

from gossamer.errors import InputError
from gossamer.running.text.chat import ChatTemplate, TemplateTooSlow
from gossamer.running.text.chat.template_process import MEMORY_BYTES, TemplateProcess

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  a <b> & 'c' \u00e9\U0001f600 \n"},
    {"role": "assistant", "content": "<think>no</think>yes"},
]
HONEST = [
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}",
    "{{ bos_token }}{% for m in messages %}\n  {%- if m.role == 'user' %}\n[{{ m.content | trim }}]"
    "\n  {%- else %}\n{{ m.content.split('</think>')[-1] }}\n  {% endif %}\n{% endfor %}",
    "{{ messages | tojson }} {{ messages | tojson(indent=2, ensure_ascii=true) }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}"
    "{% if ns.n > 2 %}{% break %}{% endif %}{% endfor %}{{ ns.n }}{{ dict(a=1)['a'] }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{{ tools is none }}{{ documents }}",
    "{% macro f(x) %}{{ x | upper }}{% endmacro %}{{ f(messages[0].content) }}{{ undefined_name }}",
    "{{ '%s|%s' | format('a', 'b') }}{{ 'a,b'.split(',') | join('+') }}{{ dict.fromkeys('a', 1) }}",
]
MANY = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}x"
SLOW = [
    MANY,
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for a in range(99999) %}{% set x = range(99999) | list | sort %}{% endfor %}",
    "{{ 7 ** 99999999 }}",
]
LARGE = [
    "{% set n = namespace(s='a') %}{% for a in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{{ 'a' * 1000000000000 }}",
    "{{ '%9999999999d' % 3 }}",
    "{{ '{:>99999999999}'.format(3) }}",
    "{{ messages | tojson(indent=999999999) }}",
    "{{ 'a' | center(99999999999) }}",
    "{% set n = namespace(s=[0]) %}{% for a in range(40) %}{% set n.s = n.s + n.s %}{% endfor %}",
]
REFUSED = {
    "{{ raise_exception('roles must alternate') }}": "roles must alternate",
    "{% if %}": "Expected an expression",
    "{{ messages[0].content.x.y }}": "no attribute 'x'",
    "{{ ''.__class__.__mro__ }}": "unsafe",
    "{{ namespace(_x=1) }}": "underscore",
    "{{ messages.append(1) }}": "unsafe",
    "{% include '/etc/passwd' %}": "loader",
    "{{" + "(" * 100_000: "recursion",
    "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}": "more than 10000000 characters",
    "{{ 'a' * 20000000 }}": "more than 10000000 characters",
    "{{ range(999999999) }}": "Range too big",
    "{{ '\\ud800' }}": "surrogate",
}


@pytest.fixture(scope="module")
def process():
    """Patient, since machines may be busy; `SLOW` templates get another one."""
    return TemplateProcess(seconds=60)


def worker_pid(process):
    return process._worker.process.pid


def template(source, process):
    return ChatTemplate({"chat_template.jinja": source.encode()}, process)


@pytest.mark.parametrize("source", HONEST, ids=range(len(HONEST)))
def test_honest_templates_give_what_transformers_gives(source, process):
    variables = {"bos_token": "<s>"}
    expected, _ = chat_template_utils.render_jinja_template(
        conversations=[TALK, TALK[:2]],
        chat_template=source,
        add_generation_prompt=True,
        **variables,
    )
    assert process.render(source, [TALK, TALK[:2]], variables) == expected


def test_dates_are_those_of_this_machine(process):
    source = "{{ strftime_now('%Y-%m-%d %H') }}"
    near = {time.strftime("%Y-%m-%d %H")}
    found = process.render(source, [TALK], {})[0]
    assert found in near | {time.strftime("%Y-%m-%d %H")}


@pytest.mark.parametrize("source", SLOW, ids=range(len(SLOW)))
def test_a_template_that_takes_too_long_is_ended(source):
    process = TemplateProcess(seconds=1.0)
    with pytest.raises(TemplateTooSlow, match="longer than 1 s"):
        process.render(source, [TALK], {})
    assert process._worker is None


@pytest.mark.parametrize("source", LARGE, ids=range(len(LARGE)))
def test_a_template_that_takes_too_much_memory_is_refused(source, process):
    with pytest.raises(InputError, match="needs more than 512 MiB"):
        process.render(source, [TALK], {})
    # The next one is none the worse for it.
    assert process.render("{{ messages | length }}", [TALK], {}) == ["3"]
    limit = resource.prlimit(worker_pid(process), resource.RLIMIT_AS)
    assert limit == (MEMORY_BYTES, MEMORY_BYTES)


@pytest.mark.parametrize(("source", "reason"), REFUSED.items(), ids=range(len(REFUSED)))
def test_refusals_say_why(source, reason, process):
    with pytest.raises(InputError, match=f"messages: .*{reason}"):
        template(source, process).render(TALK)


def test_a_process_that_dies_is_an_error_and_the_next_one_answers(process):
    process.render("x", [TALK], {})
    threading.Timer(0.5, os.kill, (worker_pid(process), signal.SIGKILL)).start()
    with pytest.raises(InputError, match="its process ended without an answer"):
        process.render(MANY, [TALK], {})
    assert process.render("x", [TALK], {}) == ["x"]


def test_a_process_that_died_while_it_waited_is_replaced(process):
    process.render("x", [TALK], {})
    pid = worker_pid(process)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: status_of(pid) == "Z")
    assert process.render("x", [TALK], {}) == ["x"]


def test_threads_share_a_process(process):
    found = {}

    def render(number):
        found[number] = process.render(
            "{{ messages[0].content }}", [[{"content": f"{number}"}]], {}
        )

    threads = [threading.Thread(target=render, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [f"{number}"] for number in range(16)}


def test_waiting_for_others_counts():
    process = TemplateProcess(seconds=0.5)
    with process._turn, pytest.raises(TemplateTooSlow):
        process.render("x", [TALK], {})


def test_a_forked_copy_starts_its_own(process):
    process.render("x", [TALK], {})
    worker = process._worker
    worker.owner -= 1  # as if another process had started it
    assert process.render("x", [TALK], {}) == ["x"]
    assert process._worker is not worker
    worker.owner += 1


def test_it_ends_when_nobody_needs_it_any_more():
    process = TemplateProcess()
    process.render("x", [TALK], {})
    pid = worker_pid(process)
    del process
    # The watch of the last call may hold it for a moment.
    wait_for(lambda: (gc.collect(), status_of(pid))[1] == "gone")


SCRIPT = """
from gossamer.running.text.chat.template_process import TemplateProcess
import sys, os, threading
process = TemplateProcess(seconds=float(sys.argv[2]))
process.render("x", [[]], {})
print(process._worker.process.pid, flush=True)
if sys.argv[1]:
    threading.Thread(target=process.render, args=(sys.argv[1], [[]], {}), daemon=True).start()
sys.stdin.read()
"""


@pytest.mark.parametrize("source", ["", MANY], ids=["idle", "busy"])
def test_it_ends_with_a_parent_that_was_killed(source):
    command = [sys.executable, "-c", SCRIPT, source, "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_for(lambda: status_of(pid) in ("Z", "gone"))


def status_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "gone"


def test_it_knows_nothing_of_its_parent(process, monkeypatch):
    monkeypatch.setenv("GOSSAMER_API_KEY", "do-not-tell")
    alone = TemplateProcess()
    alone.render("x", [TALK], {})
    place = Path(f"/proc/{worker_pid(alone)}")
    assert b"do-not-tell" not in (place / "environ").read_bytes()
    assert "torch" not in (place / "maps").read_text()
