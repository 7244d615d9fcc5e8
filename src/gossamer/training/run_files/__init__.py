# SPDX-License-Identifier: Apache-2.0
"""Where a run lives on disk, and what it writes down while it goes: folders and metrics.

`RunFolder` names and guards the folders. A loop gives its records to sinks: `MetricsFile` always,
`TensorBoard` on request.
"""

from gossamer.training.run_files.folder import RunFolder
from gossamer.training.run_files.metrics import MetricsFile, Sink, TensorBoard, read_metrics

__all__ = ["MetricsFile", "RunFolder", "Sink", "TensorBoard", "read_metrics"]
