# SPDX-License-Identifier: Apache-2.0
"""`gossamer doctor`: is everything well on this machine? Ready to paste into an issue."""

from typing import TYPE_CHECKING

import click

from gossamer.cli.shell.command import Command
from gossamer.cli.shell.output import Output, table
from gossamer.errors import ResourceError

if TYPE_CHECKING:
    from rich.table import Table

    from gossamer.cli.doctor.health import Check

_EXAMPLES = """
gossamer doctor
gossamer doctor --json > doctor.json
GOSSAMER_KERNELS=avx2 gossamer doctor
"""


@click.command(cls=Command, examples=_EXAMPLES, short_help="Check this machine; test the kernels.")
@click.pass_obj
def doctor(out: Output) -> int:
    """Check versions, CPU kernels, threads, disk and memory; test the kernels for a second.

    Prints no user names, tokens or home paths. Exits with 4 if something needs fixing.
    """
    from gossamer.cli.doctor.health import Check, run_checks
    from gossamer.cli.doctor.scrub import scrub_text

    with out.stage("checking"):
        found = run_checks()
    checks = [
        Check(check.name, scrub_text(check.found), check.ok, scrub_text(check.fix))
        for check in found
    ]
    problems = [check for check in checks if not check.ok]
    document = {
        "healthy": not problems,
        "checks": {check.name: {"found": check.found, "ok": check.ok} for check in checks},
        "problems": [
            {"name": check.name, "found": check.found, "fix": check.fix} for check in problems
        ],
    }
    verdict = (
        "Everything is well."
        if not problems
        else "\n".join(f"Problem: {p.name}: {p.found}\n  Fix: {p.fix}" for p in problems)
    )
    out.result(document, _table(checks), verdict)
    return ResourceError.exit_code if problems else 0


def _table(checks: "list[Check]") -> "Table":
    shown = table("check", "", "found")
    for check in checks:
        shown.add_row(check.name, "ok" if check.ok else "PROBLEM", check.found)
    return shown
