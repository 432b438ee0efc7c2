"""Whose records these are, and how the boot clock becomes wall time on this node.

In: the running system. Out: the values that every record carries.
"""

import socket
from pathlib import Path

from agent import __version__, clock
from agent.sinks.record import ClockMap, Host
from agent.sinks.text import NAMESPACES


def host_facts() -> Host:
    """Read whose records these are."""
    try:
        machine_id = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine_id = ""
    own = {
        name: (Path("/proc/self/ns") / name).stat().st_ino
        for name in NAMESPACES
        if (Path("/proc/self/ns") / name).exists()
    }
    return Host(machine_id, socket.gethostname(), clock.boot_id(), __version__, own)


def read_clock() -> ClockMap:
    """Read how boot time becomes wall time now."""
    return ClockMap(clock.wall_anchor().offset_ns, *clock.kernel_state())
