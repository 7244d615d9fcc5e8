# SPDX-License-Identifier: Apache-2.0
"""Training on many processes: a grid of ranks, and the parts of a model on it."""
