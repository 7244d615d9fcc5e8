# SPDX-License-Identifier: Apache-2.0
"""Texts to tokens, vectors, labels and chats."""
