# SPDX-License-Identifier: Apache-2.0
"""transformers without a word and without the network, while it builds what a file asks for."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from gossamer.io.huggingface.auto_tables import import_transformers


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars, load reports, warnings or downloads: faults become errors here."""
    logging = import_transformers().utils.logging
    from huggingface_hub import constants

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    offline = constants.HF_HUB_OFFLINE
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    constants.HF_HUB_OFFLINE = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
