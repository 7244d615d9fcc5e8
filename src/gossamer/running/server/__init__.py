# SPDX-License-Identifier: Apache-2.0
"""A model behind HTTP, in its own form and in the one of OpenAI's interface.

`make_service` says what a model can do, `build_app` makes an ASGI application of that, `run_server`
runs it until it is told to stop. Start with `app.py`. The extra [serve] must be installed.
"""

from gossamer.running.server.access import Access
from gossamer.running.server.app import build_app, make_service
from gossamer.running.server.compare import Beside
from gossamer.running.server.lifecycle import (
    run_server,
    running_server,
)
from gossamer.running.server.limits import Limits

__all__ = [
    "Access",
    "Beside",
    "Limits",
    "build_app",
    "make_service",
    "run_server",
    "running_server",
]
