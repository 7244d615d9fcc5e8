# SPDX-License-Identifier: Apache-2.0
"""The layers of each kind in the forms that are trained, masked and compact, and their base."""
