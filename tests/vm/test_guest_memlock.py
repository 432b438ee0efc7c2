"""Without CAP_SYS_RESOURCE, and with 64 KiB of memory that may be locked.

In: a guest whose tests have lost that capability. Out: a kernel that counts BPF memory
against the limit (before 5.11) says so in one line; on any other one all is well.
"""

import os
import re
import resource
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

CAP_SYS_RESOURCE = 24
COUNTS = tuple(int(part) for part in os.uname().release.split(".")[:2]) < (5, 11)


def test_the_capability_is_gone_and_the_limit_is_the_old_default():
    status = Path("/proc/self/status").read_text()
    effective = int(re.search(r"CapEff:\t(\w+)", status)[1], 16)
    assert not effective >> CAP_SYS_RESOURCE & 1
    assert resource.getrlimit(resource.RLIMIT_MEMLOCK) == (65536, 65536)


def test_the_limit_is_enough_or_is_named(agent_factory):
    agent = agent_factory()
    loaded = agent.command("load")
    if not COUNTS:
        assert loaded.returncode == 0, loaded.stderr
        return
    assert loaded.returncode == 77
    [line] = loaded.stderr.splitlines()
    assert "RLIMIT_MEMLOCK" in line
    assert not agent.pins.exists()
