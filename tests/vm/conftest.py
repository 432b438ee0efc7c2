"""Tests for guests alone, beside the tests of the lab that runs them.

In: the environment that the lab gives a guest. Out: the fixtures of the kernel tests,
and a reason to skip on the host.
"""

import os
from pathlib import Path

import pytest

from tests.kernel.conftest import _built, agent_factory, trigger

__all__ = ["_built", "agent_factory", "trigger"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what only a guest can show."""
    if "VMLAB" in os.environ:
        return
    for item in items:
        if item.path.parent == HERE and item.path.name.startswith("test_guest_"):
            item.add_marker(pytest.mark.skip(reason="for guests alone: make test-vm"))
