# SPDX-License-Identifier: Apache-2.0
"""A model over several ranks, layer after layer: cutting, schedules, messages."""
