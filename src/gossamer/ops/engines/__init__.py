# SPDX-License-Identifier: Apache-2.0
"""Whole models in one native call: encoders, decoders, networks of convolutions, active neurons."""
