# SPDX-License-Identifier: Apache-2.0
"""Pruning with data: batches flow through a model and stop in front of every layer."""
