# SPDX-License-Identifier: Apache-2.0
"""Doors for bytes from outside: bounded, checked before use, written whole or not at all."""
