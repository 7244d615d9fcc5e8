# SPDX-License-Identifier: Apache-2.0
"""What can be trained from files: images, text, labelled texts."""

from gossamer.train.tasks.images import image_task
from gossamer.train.tasks.labelled import labelled_task
from gossamer.train.tasks.task import Task
from gossamer.train.tasks.text import text_task

__all__ = ["Task", "image_task", "labelled_task", "text_task"]
