# SPDX-License-Identifier: Apache-2.0
"""What a search works with: a model, data in three parts, a measure of quality, an input to time.

`load_workload` makes a `Workload` of whatever the user gives: a file of texts or images, rows of a
click log, or batches with a metric. There is one module per kind of data.
"""

from gossamer.search.workloads.loading import check_parts, load_workload, read_part
from gossamer.search.workloads.workload import Workload

__all__ = ["Workload", "check_parts", "load_workload", "read_part"]
