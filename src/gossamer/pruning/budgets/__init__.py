# SPDX-License-Identifier: Apache-2.0
"""How a target is shared among layers: by rule, or by what was measured on data."""
