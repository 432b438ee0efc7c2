"""docs/roles.md names every role, once, and no other."""

import re
from pathlib import Path

from agent.role import Role

PAGE = Path(__file__).parents[2] / "docs" / "roles.md"


def test_the_page_names_every_role_once_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(Role)
