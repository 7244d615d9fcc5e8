# SPDX-License-Identifier: Apache-2.0
"""Modules of a model are replaced, cut and compacted; what users hung on them is kept.

Whoever replaces a layer asks `carried` what would be lost and hands the rest over.
"""
