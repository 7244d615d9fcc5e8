# SPDX-License-Identifier: Apache-2.0
"""The links of a cluster in a box: what they may carry, what they carried."""

import json
import math
from dataclasses import dataclass

from gossamer.errors import InputError
from gossamer.testing.cluster_namespace import tool

# Ethernet, IPv4 and TCP with time stamps. A segment of up to 64 KiB has them once, because virtual
# interfaces hand it over unsplit.
_HEADER_BYTES = 66
# A bucket below one 64 KiB segment makes the kernel split every frame, at a third of the rate.
_BURST, _QUEUE = "256kb", "4mb"


@dataclass(frozen=True)
class Link:
    """The cable between a host and the switch, the same in both directions.

    Attributes:
        rate_mbit: megabits per second; None is as fast as the machine.
        delay_ms: one way, from sender to receiver.
        jitter_ms: added to the delay, uniform between 0 and this; frames stay in order.
    """

    rate_mbit: float | None = None
    delay_ms: float = 0.0
    jitter_ms: float = 0.0

    def __post_init__(self) -> None:
        bounds = {"rate_mbit": "> 0", "delay_ms": ">= 0", "jitter_ms": ">= 0"}
        for name, bound in bounds.items():
            value = getattr(self, name)
            if name == "rate_mbit" and value is None:
                continue
            if not 0 <= value < math.inf or (value == 0 and bound == "> 0"):
                raise InputError(f"Link: {name} must be finite and {bound}, got {value}.")

    @property
    def waits(self) -> bool:
        """Whether frames are held back."""
        return self.delay_ms > 0 or self.jitter_ms > 0


@dataclass(frozen=True)
class Traffic:
    """Payload bytes of TCP that a host sent and received since the cluster was made."""

    sent_bytes: int
    received_bytes: int

    def __sub__(self, before: "Traffic") -> "Traffic":
        return Traffic(
            self.sent_bytes - before.sent_bytes, self.received_bytes - before.received_bytes
        )


def read_traffic(namespace: int) -> Traffic:
    """The counters of the host in `namespace`; acknowledgements count as nothing."""
    (shown,) = json.loads(tool(namespace, "ip -json -statistics link show dev eth0"))
    ways = (shown["stats64"][way] for way in ("tx", "rx"))
    return Traffic(*(way["bytes"] - _HEADER_BYTES * way["packets"] for way in ways))


def shape(namespace: int, device: str, rate_mbit: float | None) -> None:
    """Limit what leaves `device` to a rate, or lift the limit."""
    if rate_mbit is not None:
        limits = f"rate {round(rate_mbit * 1e3)}kbit burst {_BURST} limit {_QUEUE}"
        tool(namespace, f"tc qdisc replace dev {device} root tbf {limits}")
    elif "tbf" in tool(namespace, f"tc qdisc show dev {device}"):
        tool(namespace, f"tc qdisc del dev {device} root")
