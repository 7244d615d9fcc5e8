# SPDX-License-Identifier: Apache-2.0
"""What somebody meant who mistyped a name."""

import difflib


def nearest(name: str, names: list[str]) -> str:
    """A question about the name that is nearest, or all of them."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return f"did you mean '{close[0]}'?" if close else f"expected one of {', '.join(names)}."
