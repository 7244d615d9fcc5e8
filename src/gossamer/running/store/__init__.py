# SPDX-License-Identifier: Apache-2.0
"""Packed engines in the user's cache, so that a second start packs nothing. Free of torch.

`EngineStore` keeps and finds them by an `Identity`: the files a model came from, how it was asked
for, and what packed it. A file is what `parts.py` says; it is hashed, and whoever uses its arrays
checks every index. What does not fit is not used, with one line; nothing here is an error.
"""

from gossamer.running.store.folder import EngineStore, Fault
from gossamer.running.store.identity import Identity, files_digest
from gossamer.running.store.parts import Parts

__all__ = ["EngineStore", "Fault", "Identity", "Parts", "files_digest"]
