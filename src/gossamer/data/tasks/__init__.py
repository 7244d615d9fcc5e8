# SPDX-License-Identifier: Apache-2.0
"""What a model can be trained on: images, text, labelled texts, click logs, graphs.

A `Task` is everything about a training run but the model: batches, a loss, a measure of quality.
Each `..._task` function makes one from a file, or from generated data such as `zoo:images`.
"""

from gossamer.data.tasks.clicks import clicks_task
from gossamer.data.tasks.graph import GraphTaskSettings, graph_task
from gossamer.data.tasks.images import image_task
from gossamer.data.tasks.labelled import labelled_task
from gossamer.data.tasks.task import Task, tensors_digest
from gossamer.data.tasks.text import text_task

__all__ = [
    "GraphTaskSettings",
    "Task",
    "clicks_task",
    "graph_task",
    "image_task",
    "labelled_task",
    "tensors_digest",
    "text_task",
]
