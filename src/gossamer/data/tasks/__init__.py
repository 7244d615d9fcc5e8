# SPDX-License-Identifier: Apache-2.0
"""What can be trained from files: images, text, labelled texts."""

from gossamer.data.tasks.images import image_task
from gossamer.data.tasks.labelled import labelled_task
from gossamer.data.tasks.task import Task
from gossamer.data.tasks.text import text_task

__all__ = ["Task", "image_task", "labelled_task", "text_task"]
