# SPDX-License-Identifier: Apache-2.0
"""`gossamer doctor`: is everything well on this machine? Ready to paste into an issue.

`health` looks at the machine and hides what is private.
"""

from dataclasses import replace

from gossamer.cli.shell import Output, gossamer_command, table
from gossamer.errors import ResourceError

_EXAMPLES = """
gossamer doctor
gossamer doctor --json > doctor.json
GOSSAMER_KERNELS=avx2 gossamer doctor
"""


@gossamer_command("Check this machine; test the kernels.", _EXAMPLES)
def doctor(out: Output) -> int:
    """Check versions, CPU kernels, threads, disk and memory; test the kernels for a second.

    Prints no user names, tokens or home paths. Exits with 4 if something needs fixing.
    """
    from gossamer.cli.doctor.health import run_checks, scrub_text

    with out.stage("checking"):
        found = run_checks()
    checks = [
        replace(check, found=scrub_text(check.found), fix=scrub_text(check.fix)) for check in found
    ]
    problems = [check for check in checks if not check.ok]
    document = {
        "healthy": not problems,
        "checks": {check.name: {"found": check.found, "ok": check.ok} for check in checks},
        "problems": [{"name": p.name, "found": p.found, "fix": p.fix} for p in problems],
    }
    verdict = "\n".join(f"Problem: {p.name}: {p.found}\n  Fix: {p.fix}" for p in problems)
    rows = ((check.name, "ok" if check.ok else "PROBLEM", check.found) for check in checks)
    out.result(document, table("check", "", "found", rows=rows), verdict or "Everything is well.")
    return ResourceError.exit_code if problems else 0
