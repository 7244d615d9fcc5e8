# SPDX-License-Identifier: Apache-2.0
"""A model behind HTTP: batches, bounded queues, streams. Needs the extra [serve]."""
