# SPDX-License-Identifier: Apache-2.0
"""Every reader of files."""

import targets_artifacts  # noqa: F401
import targets_data  # noqa: F401
import targets_models  # noqa: F401
import targets_onnx  # noqa: F401
import targets_runs  # noqa: F401
import targets_text  # noqa: F401
from target import TARGETS, Target

__all__ = ["TARGETS", "Target"]
