# SPDX-License-Identifier: Apache-2.0
"""One-shot pruning in one call, for tests."""

from gossamer.pruning import apply_plan, plan_oneshot


def prune_oneshot(model, **settings):
    return apply_plan(model, plan_oneshot(model, **settings))
