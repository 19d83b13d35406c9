# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The random number generators of a core.

A core has a :class:`RandomState`, which holds a :class:`Xorwow` for each engine that draws numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..hardware.generations import PARTITIONS
from ..terms.enums import Engine
from ..terms.spec import DataNeeded

WORDS = 6

# Marsaglia's constants: how far the counter advances with each number, and how far the recurrence reaches back.
_COUNTER_STEP = np.uint32(362437)
_DEPTH = 5


def _xorshifted(states: npt.NDArray[np.uint32], steps: int) -> npt.NDArray[np.uint32]:
    """Return, as rows, the five shift-register words of each state and then the next ``steps`` words.

    The counter is not yet added to these words.
    """
    values = np.empty((_DEPTH + steps, len(states)), np.uint32)
    values[:_DEPTH] = states.T
    for start in range(0, steps, _DEPTH):  # as many steps at once as do not need each other's result as the oldest word
        oldest = values[start : min(start + _DEPTH, steps)]
        mixed = oldest ^ (oldest >> 2)
        mixed ^= mixed << 1
        for step, new in enumerate(mixed, start + _DEPTH):
            newest = values[step - 1]
            values[step] = newest ^ (newest << 4) ^ new
    return values


class Xorwow:
    """The generators of one engine: every lane (partition) has ``streams`` of them, which draw numbers round-robin.

    Every instruction starts with the first stream of a lane, and advances all streams of the lane by the same number of
    steps.

    Attributes:
        words: the state, shape (128, streams * 6): for each stream x, y, z, w, v and the counter.
    """

    def __init__(self, streams: int, *entropy: int) -> None:
        self._streams = streams
        self.words: npt.NDArray[np.uint32]
        self.seed(*entropy)

    def seed(self, *entropy: int) -> None:
        """Set the states of all lanes by numpy's ``SeedSequence`` of ``entropy``; different lanes get different
        states.
        """
        count = PARTITIONS * self._streams * WORDS
        words: npt.NDArray[Any] = np.random.SeedSequence(entropy).generate_state(count, np.uint32)
        self.words = words.reshape(PARTITIONS, self._streams * WORDS)

    def draw(self, lanes: slice, count: int) -> npt.NDArray[np.uint32]:
        """Return the next ``count`` numbers of the lanes, shape (lanes, count); the states of other lanes stay
        unchanged.
        """
        words = self.words[lanes]
        states = words.reshape(len(words) * self._streams, WORDS)
        steps = -(-count // self._streams)
        values = _xorshifted(states[:, :_DEPTH], steps)
        counters = states[:, _DEPTH] + np.arange(steps + 1, dtype=np.uint32)[:, None] * _COUNTER_STEP
        numbers = values[_DEPTH:] + counters[1:]
        words[...] = np.concatenate([values[steps:].T, counters[-1][:, None]], axis=1).reshape(words.shape)
        by_lane = numbers.reshape(steps, len(words), self._streams).transpose(1, 0, 2)
        return by_lane.reshape(len(words), steps * self._streams)[:, :count]


# The random number generators of each lane of an engine.
GENERATORS_PER_LANE = {Engine.gpsimd: 1, Engine.vector: 4}


class RandomState:
    """The random number generators of a core. An unseeded generator starts from the number of the core, so that cores
    differ.

    The documentation names XORWOW (Marsaglia, "Xorshift RNGs", 2003) for GpSimd and for the Vector engine of trn3, with
    its state of six 32-bit words, but gives neither the order of the words, nor how a seed fills them, nor the shift
    register of the Vector engines of trn1 and trn2. Here all engines run XORWOW: numbers are reproducible, but differ
    from those of a device.
    """

    def __init__(self, core_number: int) -> None:
        self._core_number = core_number
        self._generators: dict[Engine, Xorwow] = {}
        self._lost: set[Engine] = set()

    @property
    def is_used(self) -> bool:
        """Whether a kernel has drawn random numbers or seeded a generator."""
        return bool(self._generators)

    def of(self, engine: Engine) -> Xorwow:
        """Return the generators of an engine; the first call creates them.

        Raises:
            DataNeeded: the state is unknown after :meth:`lose`.
        """
        if engine in self._lost:
            raise DataNeeded("the random number generators")
        if engine not in self._generators:
            count = GENERATORS_PER_LANE[engine]
            self._generators[engine] = Xorwow(count, self._core_number, count)
        return self._generators[engine]

    def lose(self, engine: Engine) -> None:
        """Record that the state of an engine's generators is unknown from now on.

        A launch with ``skip_arithmetic`` calls this if it skips drawing numbers or the values of a seed.
        """
        self._lost.add(engine)
