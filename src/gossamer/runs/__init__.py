# SPDX-License-Identifier: Apache-2.0
"""How recipes are carried out: load, run, report, save."""
