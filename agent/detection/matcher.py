"""All rules of one kind of event, sorted so that an event meets only a few of them.

In: the trees of rules. Out: a Matcher that says which of them hold for an event: one
generated function a rule, found by the name of the program that runs, or by pieces of
four bytes of its command line; only what has neither is asked of every event.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from agent.detection.condition import Tree, atoms
from agent.detection.facts import INVOKED, RESOLVED, VIEWED, Facts, Lowered
from agent.detection.necessary import COMMON, GRAM, Key, Sorting, keys
from agent.detection.source import Constants, function, together

MANY = 12
"""With more rules than this that would be asked of every event, pieces are looked for
at every place of a text, and not at every second, so that shorter texts are keys."""
Check = Callable[[Lowered, Mapping[str, str | None]], bool]


Together = Callable[[Lowered, Mapping[str, str | None], list[int]], list[int]]


class Asked:
    """One rule as it is asked: `number` is its place, `check` is replaced to disable.

    `views` has the bits of the fields in it that differ between views (VIEWED).
    """

    __slots__ = ("check", "number", "views")

    def __init__(self, number: int, check: Check, views: int) -> None:
        """Ask it from now on."""
        self.number = number
        self.check = check
        self.views = views


class Hit(NamedTuple):
    """A rule that holds, by its number, and the view it holds under.

    `seen` has the fields that are otherwise in that view.
    """

    number: int
    view: str
    seen: Mapping[str, str | None]


class _View(NamedTuple):
    """A view as hits have it."""

    name: str
    seen: Mapping[str, str | None]


_FIRST_VIEW = _View(RESOLVED, {})


class Failed(NamedTuple):
    """A rule that raised, by its number; it is not asked again."""

    number: int
    error: Exception


def _never(_low: Lowered, _raw: Mapping[str, str | None]) -> bool:
    return False


class Matcher:
    """The rules of one kind; numbers are places in the list that it was made from."""

    def __init__(self, trees: Iterable[Tree], sorting: Sorting) -> None:
        """Generate a function for each and sort them."""
        listed = list(trees)
        self.asked = _generate(listed)
        self.failed: list[Failed] = []
        """Rules that raised; the reader empties it."""
        self._texts = sorting.texts
        self._every = 2
        self._always: list[Asked] = []
        self._named: dict[str, dict[str, list[Asked]]] = {}
        self._grams: dict[int, list[Asked]] = {}
        keyed = [keys(one, sorting) for one in listed]
        if keyed.count(None) > MANY:
            self._every = 1
            shorter = sorting._replace(shortest=GRAM)
            keyed = [keys(one, shorter) for one in listed]
        self._sort(keyed)
        self._known = frozenset(self._grams)
        always = {one.number: listed[one.number] for one in self._always}
        self._together = _all_at_once(always) if always else None

    def _sort(self, keyed: list[frozenset[Key] | None]) -> None:
        rare = _Rare(key.text for some in keyed for key in some or () if not key.field)
        for asked, some in zip(self.asked, keyed, strict=True):
            if some is None:
                self._always.append(asked)
            for key in some or ():
                if key.field:
                    names = self._named.setdefault(key.field, {})
                    names.setdefault(key.text, []).append(asked)
            texts = [key.text for key in some or () if not key.field]
            for gram in {
                gram for text in texts for gram in rare.some(text, self._every)
            }:
                self._grams.setdefault(gram, []).append(asked)

    @property
    def always(self) -> int:
        """How many rules are asked of every event."""
        return len(self._always)

    def match(self, facts: Facts) -> list[Hit]:
        """Return the rules that hold, each once, under the first view that it holds."""
        low = facts.low
        general: list[Asked] = []
        if self._known:
            general = self._by_text("\0".join([low[field] for field in self._texts]))
        hits = self._ask_always(facts)
        self._ask(self._by_name(low, general), facts, _FIRST_VIEW, hits)
        for differs, field in facts.other_views():
            more = self._by_name(low, general) + self._always
            if field in self._texts and self._known:
                more = more + self._by_text(low[field])
            again = [one for one in more if one.views & differs]
            view = _View(INVOKED, {name: facts.raw[name] for name in VIEWED})
            self._ask(again, facts, view, hits)
        return hits

    def _ask_always(self, facts: Facts) -> list[Hit]:
        """Ask what is asked of every event in one call; one by one after an error."""
        hits: list[Hit] = []
        if self._together is not None:
            try:
                found = self._together(facts.low, facts.raw, [])
            except Exception:  # noqa: BLE001 - who it was is found below
                self._together = None
            else:
                return [Hit(number, *_FIRST_VIEW) for number in found]
        self._ask(self._always, facts, _FIRST_VIEW, hits)
        return hits

    def _ask(
        self, some: list[Asked], facts: Facts, view: "_View", hits: list[Hit]
    ) -> None:
        low, raw = facts.low, facts.raw
        for one in some:
            try:
                if one.check(low, raw):
                    _add(hits, Hit(one.number, *view))
            except Exception as error:  # noqa: BLE001 - one rule, not all of them
                self.disable(one, error)

    def disable(self, one: Asked, error: Exception) -> None:
        """Ask this rule no more, and say so in `failed`."""
        one.check = _never
        self._together = None
        self.failed.append(Failed(one.number, error))

    def _by_name(self, low: Lowered, general: list[Asked]) -> list[Asked]:
        """Return `general` and the rules of the names that are there."""
        found = general
        for field, names in self._named.items():
            path = low[field]
            some = names.get(path[path.rfind("/") + 1 :])
            if some:
                found = some + found
        return found

    def _by_text(self, text: str) -> list[Asked]:
        """Return the rules of which a piece is in a text, each once."""
        there = memoryview(text.encode("utf-8", "surrogateescape"))
        size = len(there)
        found: set[int] = set()
        for start in range(0, GRAM, self._every):
            if size >= start + GRAM:
                whole = there[start : size - (size - start) % GRAM]
                found |= self._known.intersection(whole.cast("I"))
        if len(found) <= 1:
            return self._grams[found.pop()] if found else []
        return list(dict.fromkeys(one for gram in found for one in self._grams[gram]))


def _add(hits: list[Hit], hit: Hit) -> None:
    if all(one.number != hit.number for one in hits):
        hits.append(hit)


def _generate(trees: list[Tree]) -> list[Asked]:
    """Return each tree as a function."""
    constants: Constants = {}
    text = "\n".join(
        function(f"t{number}", tree, constants) for number, tree in enumerate(trees)
    )
    exec(compile(text, "<rules>", "exec"), constants)  # noqa: S102 - only our own text
    return [
        Asked(number, constants[f"t{number}"], _views(tree))
        for number, tree in enumerate(trees)
    ]


def _all_at_once(trees: dict[int, Tree]) -> Together:
    """Return trees as one function, which spares a call for each."""
    constants: Constants = {}
    text = together("every", trees, constants)
    exec(compile(text, "<rules>", "exec"), constants)  # noqa: S102 - as in _generate
    every: Together = constants["every"]
    return every


def _views(tree: Tree) -> int:
    found = 0
    for one in atoms(tree):
        found |= VIEWED.get(one.field, 0)
    return found


class _Rare:
    """Chooses of each text the pieces that are least to be expected elsewhere."""

    def __init__(self, all_texts: Iterable[str]) -> None:
        self._count: dict[bytes, int] = {one.encode(): 50 for one in COMMON}
        for one in set(all_texts):
            for gram in set(_grams(one)):
                self._count[gram] = self._count.get(gram, 0) + 1

    def some(self, text: str, neighbours: int) -> set[int]:
        """Return so many neighbouring pieces, of which one begins at such a place.

        They are the numbers that their bytes are on this machine.
        """
        grams = _grams(text)
        choice = [
            grams[at : at + neighbours] for at in range(len(grams) - neighbours + 1)
        ]
        best = min(choice, key=lambda some: sum(map(self._expected, some)))
        return {memoryview(gram).cast("I")[0] for gram in best}

    def _expected(self, gram: bytes) -> int:
        return 10 * self._count[gram] + sum(one in b" /-.etaoinsr" for one in gram)


def _grams(text: str) -> list[bytes]:
    data = text.encode("utf-8", "surrogateescape")
    return [data[at : at + GRAM] for at in range(len(data) - GRAM + 1)]
