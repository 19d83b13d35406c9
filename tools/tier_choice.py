# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of the fast tests by what they reach and cost, for ``tools.write_slow_tests``, which reads and writes the
files.

:func:`choose` chooses for a :class:`Goal` and what is :class:`Wanted`. What a test reaches is an integer with a bit for
each element.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf


@dataclass(frozen=True)
class Measured:
    """A test that was measured.

    Attributes:
        seconds: its own cost.
        reached: the elements that it reaches.
        group: the tests that share what one of them makes, such as a fixture of a file; "" for none.
        share: its part of the cost of that, which is the same whether all of the group are fast or one.
    """

    seconds: float
    reached: int = 0
    group: str = ""
    share: float = 0.0

    @property
    def price(self) -> float:
        """The cost where all tests of its group are fast or none is."""
        return self.seconds + self.share


@dataclass(frozen=True)
class Goal:
    """Elements of which a share is to be reached.

    Attributes:
        name: the kind of the elements.
        elements: all of them.
        share: the least share.
    """

    name: str
    elements: int
    share: float

    def missing(self, reached: int) -> int:
        """How many more elements have to be reached."""
        wanted = ceil(self.share * self.elements.bit_count())
        return max(0, wanted - (reached & self.elements).bit_count())

    def reached_share(self, reached: int) -> float:
        return (reached & self.elements).bit_count() / max(1, self.elements.bit_count())


@dataclass(frozen=True)
class Wanted:
    """The demands on the fast tier.

    Attributes:
        goals: shares of elements that it reaches.
        needs: by their name and reason: tests of which it has to have one.
        covers: tests of which it has to have so many that they reach what all of them reach.
        small: every test of at most so many seconds is fast.
        longest: a test that is the only choice of its function is left out if it takes more seconds.
        shared: tests that share what takes more seconds are fast only if they are needed.
        most_left_out: the most functions that are left out.
    """

    goals: Sequence[Goal] = ()
    needs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    covers: Sequence[Sequence[str]] = ()
    small: float = 0.05
    longest: float = 1.0
    shared: float = 12.0
    most_left_out: int = 260


@dataclass
class Choice:
    """The fast tests, each with the reason, and the functions that have none, with the cost of their cheapest test."""

    fast: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, float] = field(default_factory=dict)
    reached: int = 0

    def add(self, test: str, reason: str, tests: Mapping[str, Measured]) -> None:
        self.fast.setdefault(test, reason)
        self.reached |= tests[test].reached

    def seconds(self, tests: Mapping[str, Measured]) -> float:
        """The cost of the fast tests."""
        return seconds_of(tests, self.fast)


def seconds_of(tests: Mapping[str, Measured], chosen: Collection[str]) -> float:
    """The cost of some tests, with what they share."""
    groups = {tests[test].group for test in chosen} - {""}
    shared = sum(measured.share for measured in tests.values() if measured.group in groups)
    return shared + sum(tests[test].seconds for test in chosen)


def choose(
    tests: Mapping[str, Measured], wanted: Wanted, function_of: Callable[[str], str], most: float = inf
) -> Choice:
    """Choose the fast tests, and add to them for the goals while they take at most ``most`` seconds."""
    choice = Choice()
    for reason, candidates in wanted.needs.items():
        if candidates:
            choice.add(_cheapest(tests, candidates), reason, tests)
    for cover in wanted.covers:
        for test in covering(tests, cover, _union(tests, cover)):
            choice.add(test, "plans", tests)
    affordable = _without_dear_groups(tests, wanted.shared)
    for test, measured in affordable.items():
        if measured.price <= wanted.small:
            choice.add(test, "cheap", tests)
    _add_representatives(choice, tests, wanted, function_of)
    _add_for_goals(choice, tests, affordable, wanted.goals, most)
    return choice


def choose_within(
    tests: Mapping[str, Measured], wanted: Wanted, function_of: Callable[[str], str], most: float
) -> tuple[Choice, Wanted]:
    """Choose with the largest limits of ``small`` and ``longest`` by which all takes ``most`` seconds.

    Returns:
        The choice, and ``wanted`` with these limits, which are at most its own.
    """
    small, longest = wanted.small, wanted.longest
    while True:
        is_last = small < 0.002
        now = replace(wanted, small=small, longest=longest)
        choice = choose(tests, now, function_of, most if is_last else inf)
        if is_last or choice.seconds(tests) <= most:
            return choice, now
        small, longest = 0.85 * small, 0.93 * longest


def covering(tests: Mapping[str, Measured], candidates: Iterable[str], elements: int) -> Iterator[str]:
    """Yield tests, those that reach the most a second first, until ``elements`` are reached."""
    left = elements
    # What a test adds only becomes less, so that one that is still the best after a second look is the best.
    queue = [(-inf, test) for test in sorted(set(candidates))]
    while queue and left:
        before, test = heapq.heappop(queue)
        gain = (tests[test].reached & left).bit_count()
        if not gain:
            continue
        value = -gain / max(tests[test].price, 1e-4)
        if value > before and queue and value > queue[0][0]:
            heapq.heappush(queue, (value, test))
            continue
        left &= ~tests[test].reached
        yield test


def _without_dear_groups(tests: Mapping[str, Measured], most: float) -> dict[str, Measured]:
    """Return the tests but those that share what takes more than ``most`` seconds."""
    shared: dict[str, float] = {}
    for measured in tests.values():
        shared[measured.group] = shared.get(measured.group, 0.0) + measured.share
    return {test: measured for test, measured in tests.items() if shared[measured.group] <= most}


def _union(tests: Mapping[str, Measured], names: Iterable[str]) -> int:
    reached = 0
    for name in names:
        reached |= tests[name].reached
    return reached


def _cheapest(tests: Mapping[str, Measured], names: Iterable[str]) -> str:
    return min(names, key=lambda name: (tests[name].price, name))


def _add_representatives(
    choice: Choice, tests: Mapping[str, Measured], wanted: Wanted, function_of: Callable[[str], str]
) -> None:
    """Add the cheapest test of each function that has none, but for the dearest."""
    of_function: dict[str, list[str]] = {}
    for test in tests:
        of_function.setdefault(function_of(test), []).append(test)
    has_one = {function_of(test) for test in choice.fast}
    cheapest = {name: _cheapest(tests, cases) for name, cases in of_function.items() if name not in has_one}
    affordable = _without_dear_groups(tests, wanted.shared)
    dear = sorted(
        (name for name, test in cheapest.items() if test not in affordable or tests[test].price > wanted.longest),
        key=lambda name: (cheapest[name] in affordable, -tests[cheapest[name]].price),
    )[: wanted.most_left_out]
    choice.left_out = {name: tests[cheapest[name]].price for name in dear}
    for name, test in cheapest.items():
        if name not in choice.left_out:
            choice.add(test, "the cheapest of its function", tests)


def _add_for_goals(
    choice: Choice, tests: Mapping[str, Measured], affordable: Collection[str], goals: Sequence[Goal], most: float
) -> None:
    seconds = choice.seconds(tests)
    for goal in goals:
        missing = goal.missing(choice.reached)
        if not missing:
            continue
        candidates = set(affordable) - choice.fast.keys()
        for test in covering(tests, candidates, goal.elements & ~choice.reached):
            seconds += tests[test].price
            if seconds > most:
                return
            choice.add(test, f"{goal.name} that no other reaches", tests)
            if not goal.missing(choice.reached):
                break
