"""Options of this test suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden`."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the files of tests/golden anew instead of comparing with them",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether the golden files are to be written."""
    return bool(request.config.getoption("--update-golden"))
