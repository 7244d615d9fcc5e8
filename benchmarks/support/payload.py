# SPDX-License-Identifier: Apache-2.0
"""What this host of a box has sent, as its own kernel counts it."""

from pathlib import Path

_HEADER_BYTES = 66  # Ethernet, IPv4, TCP with time stamps; once per segment of up to 64 KiB


def sent_bytes():
    """Payload that this host sent so far; 0 on the loopback, which all hosts share."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "eth0":
            words = counters.split()
            return int(words[8]) - _HEADER_BYTES * int(words[9])
    return 0
