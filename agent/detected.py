"""What rules say, as frozen values: the vocabulary's part that detection adds.

Beside agent.events, which is about what the kernel reported. Paths and values of
fields are bytes, as there.
"""

import msgspec


class Detection(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A rule fits an event.

    `level` is informational, low, medium, high or critical. `fields` are those that
    made it fit, with the beginnings of their values; `view` is `invoked` when it fits
    only by the path that the program or its parent was started by, else `resolved`.
    Author and licence are the rule's, and belong into every alert of it.
    """

    rule: str
    title: str
    level: str
    author: str
    license: str
    tags: tuple[str, ...]
    file: str
    fields: tuple[tuple[str, bytes], ...]
    view: str


class RuleDisabled(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A rule raised while it was asked, and is not asked again until the next load."""

    rule: str
    title: str
    file: str
    error: str
