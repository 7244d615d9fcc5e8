# SPDX-License-Identifier: Apache-2.0
"""Whole encoders in one native call, without padding."""
