"""The public Linux rules of Sigma, where they are beside the checkout, as data.

In: nothing. Out: the rules that can be used, the errors of the others, and a mark that
skips a test where the folder is absent.
"""

from functools import cache
from pathlib import Path

import pytest

from agent.detection.rule import Rule
from agent.detection.ruleset import Reading, read

CORPUS = Path(__file__).parents[3] / "shared/corpora/sigma"
needs_corpus = pytest.mark.skipif(
    not CORPUS.is_dir(), reason=f"no public rules at {CORPUS}"
)


@cache
def reading() -> Reading:
    return read([CORPUS])


def process_rules() -> list[Rule]:
    """Those of the category process_creation."""
    rules = reading().rules
    return [one for one in rules if one.logsource.category == "process_creation"]
