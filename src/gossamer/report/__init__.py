# SPDX-License-Identifier: Apache-2.0
"""What pruning gained and cost, for people and for programs."""
