# SPDX-License-Identifier: Apache-2.0
"""One pipeline played event by event: orders of work, costs, and what they come to.

`simulate` plays a `PipelineSpec` with the `Costs` of its parts and gives what was `Played`.
`SCHEDULES` are the orders of work by `ScheduleName`, `schedule_fault` says why one does not fit.
Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.planner.pipeline.schedules import (
        SCHEDULES,
        PipelineSpec,
        ScheduleName,
        schedule_fault,
    )
    from gossamer.planner.pipeline.simulation import Costs, Played, simulate

__all__ = [
    "SCHEDULES",
    "Costs",
    "PipelineSpec",
    "Played",
    "ScheduleName",
    "schedule_fault",
    "simulate",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "SCHEDULES": "schedules",
        "Costs": "simulation",
        "PipelineSpec": "schedules",
        "Played": "simulation",
        "ScheduleName": "schedules",
        "schedule_fault": "schedules",
        "simulate": "simulation",
    },
)
