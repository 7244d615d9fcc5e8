# SPDX-License-Identifier: Apache-2.0
"""Modules of a model are replaced, cut, compacted or put back, and what users hung on them is
kept.
"""
