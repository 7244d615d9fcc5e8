# SPDX-License-Identifier: Apache-2.0
"""The training loop: steps, batches by number, evaluation, and the moment of compaction."""
