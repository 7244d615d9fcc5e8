# SPDX-License-Identifier: Apache-2.0
"""What of a model each rank computes with and trains, and the way back to the whole."""
