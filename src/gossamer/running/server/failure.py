# SPDX-License-Identifier: Apache-2.0
"""A call of the model that failed: the log gets the traceback, the client a sentence."""

import logging

from gossamer.errors import GossamerError, KernelError

_log = logging.getLogger(__name__)


def as_failure(error: Exception, what: str) -> GossamerError:
    """`error` as something to tell a client; call it where it was caught."""
    if isinstance(error, GossamerError):
        return error
    _log.error("the model failed on %s", what, exc_info=error)
    return KernelError(f"the model failed on {what} ({type(error).__name__}: {str(error)[:200]}).")
