# SPDX-License-Identifier: Apache-2.0
"""Chat templates: the text of a conversation as a model wants it, made in a process of its own.

`ChatTemplate` is a model's template, `prompt_ids` gives the tokens of a conversation and
`end_tokens` those that end an answer. A template is a program by others: it runs where nothing can
go wrong, and `TemplateTooSlow` is raised when it takes too long.
"""

from gossamer.running.text.chat.chat_template import ChatTemplate, end_tokens, prompt_ids
from gossamer.running.text.chat.template_process import TemplateTooSlow

__all__ = ["ChatTemplate", "TemplateTooSlow", "end_tokens", "prompt_ids"]
