"""Events against the rules in force: which rules fit, seen how, and what that cost.

In: an event and its surroundings. Out: Detections, and counters for each rule. A rule
that raises is disabled and told of; the others go on. New rules take the place of the
old ones by one assignment.
"""

from collections import ChainMap
from collections.abc import Mapping
from time import perf_counter_ns
from typing import NamedTuple

from agent.detected import Detection, RuleDisabled
from agent.detection.condition import Raw, Tree, holds, supporters
from agent.detection.facts import Facts
from agent.detection.fields import (
    Connection,
    FileChange,
    Surroundings,
    was_cut,
)
from agent.detection.logsource import KINDS, Kind
from agent.detection.matcher import Hit, Matcher
from agent.detection.ruleset import Ask, RuleSet
from agent.events import Access, Event, Exec

EXCERPT = 256
"""Characters of a value that a detection shows."""
EVERY = 64
"""Of so many events one has one rule timed, the rules taking turns."""
_KINDS: Mapping[type, Kind] = {
    Exec: KINDS[0],
    Access: KINDS[1],
    Connection: KINDS[2],
    FileChange: KINDS[3],
}


class Count(NamedTuple):
    """What one rule did: how often it fitted, was excepted, and was timed.

    `nanoseconds` is the time of all `timed` evaluations together.
    """

    matches: int
    suppressed: int
    timed: int
    nanoseconds: int


class _Tally:
    """The counters of one rule."""

    __slots__ = ("matches", "nanoseconds", "suppressed", "timed")

    def __init__(self) -> None:
        self.matches = self.suppressed = self.timed = self.nanoseconds = 0


class Engine:
    """Evaluates events, one after another; not for two threads but for `swap`."""

    def __init__(self, rules: RuleSet) -> None:
        """Put the rules in force."""
        self.disabled: list[RuleDisabled] = []
        """Rules that raised; the reader empties it."""
        self.events = 0
        """Events that rules were asked of, since the start."""
        self.cut = 0
        """Of these, programs of whose arguments the middle was not seen by rules."""
        self._force = _Force(rules)

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""
        return self._force.rules

    def swap(self, rules: RuleSet) -> None:
        """Put other rules in force from the next event on; counters begin anew."""
        self._force = _Force(rules)

    def counts(self) -> dict[str, Count]:
        """Return the counters of every rule by its id, since it is in force."""
        return {
            identity: Count(one.matches, one.suppressed, one.timed, one.nanoseconds)
            for identity, one in self._force.tallies.items()
        }

    def evaluate(
        self, event: Event | Connection | FileChange, around: Surroundings
    ) -> tuple[Detection, ...]:
        """Return what rules say of an event, each rule at most once."""
        kind = _KINDS.get(type(event))
        if kind is None:
            return ()
        self.events += 1
        if type(event) is Exec and was_cut(event):
            self.cut += 1
        force = self._force
        matcher = force.rules.matchers.get(kind.name)
        if matcher is None:
            return ()
        facts = Facts(event, around, kind.fields)
        asks = force.rules.asks[kind.name]
        if self.events % EVERY == 0:
            force.time_one(asks, matcher, facts)
        hits = matcher.match(facts)
        if not hits and not matcher.failed:
            return ()
        found = force.all_told(asks, hits, matcher, facts)
        self._report(asks, matcher)
        return found

    def _report(self, asks: list[Ask], matcher: Matcher) -> None:
        for number, error in matcher.failed:
            rule, said = asks[number].rule, f"{type(error).__name__}: {error}"
            told = RuleDisabled(rule.id, rule.title, rule.file, said)
            self.disabled.append(told)
        matcher.failed.clear()


class _Force:
    """Rules in force, and what is counted of them."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.tallies = {rule.id: _Tally() for rule in rules.rules}
        self._turn = 0

    def all_told(
        self, asks: list[Ask], hits: list[Hit], matcher: Matcher, facts: Facts
    ) -> tuple[Detection, ...]:
        """Return the detections of all hits, in the order of the rules."""
        found: list[Detection] = []
        for hit in sorted(hits, key=lambda hit: hit.number):
            try:
                found += self._told(asks[hit.number], hit, facts)
            except Exception as error:  # noqa: BLE001 - one rule, not all of them
                matcher.disable(matcher.asked[hit.number], error)
        return tuple(found)

    def _told(self, ask: Ask, hit: Hit, facts: Facts) -> tuple[Detection, ...]:
        """Return the detection of a hit; none when a filter excepts it.

        A filter sees who runs as the file that it is: the path that a program is
        started by is anybody's choice.
        """
        tally = self.tallies[ask.rule.id]
        if not all(holds(one, facts.raw) for one in ask.allowed):
            tally.suppressed += 1
            return ()
        raw = ChainMap(dict(hit.seen), facts.raw)
        tally.matches += 1
        rule = ask.rule
        return (
            Detection(
                rule=rule.id,
                title=rule.title,
                level=rule.level,
                author=rule.author,
                license=rule.license,
                tags=rule.tags,
                file=rule.file,
                fields=_shown(ask.tree, raw),
                view=hit.view,
            ),
        )

    def time_one(self, asks: list[Ask], matcher: Matcher, facts: Facts) -> None:
        """Evaluate the rule whose turn it is once more, with a clock beside it."""
        self._turn += 1
        asked = matcher.asked[self._turn % len(matcher.asked)]
        tally = self.tallies[asks[asked.number].rule.id]
        begun = perf_counter_ns()
        try:
            asked.check(facts.low, facts.raw)
        except Exception as error:  # noqa: BLE001 - as when it is asked
            matcher.disable(asked, error)
        tally.nanoseconds += perf_counter_ns() - begun
        tally.timed += 1


def _shown(tree: Tree, raw: Raw) -> tuple[tuple[str, bytes], ...]:
    """Return the fields that made a rule fit, with the beginnings of their values."""
    names = dict.fromkeys(atom.field for atom in supporters(tree, raw))
    return tuple(
        (name, (raw[name] or "")[:EXCERPT].encode("utf-8", "surrogateescape"))
        for name in names
    )
