# SPDX-License-Identifier: Apache-2.0
"""What a training run would cost on a described cluster: bytes, time and traffic. Nothing is run.

`planning.plan` tries every legal grid; `simulation.simulate` plays a schedule event by event.
"""
