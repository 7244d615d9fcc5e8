# SPDX-License-Identifier: Apache-2.0
"""What a search works with: batches, samples, a loss, two qualities, a call to time."""
