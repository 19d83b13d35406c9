# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The random number generators of a core's engines.

The documentation names the generator of GpSimd and of the Vector engine of trn3, XORWOW (Marsaglia, "Xorshift RNGs",
2003), with its state of six 32-bit words, of which the Vector engine keeps four in each lane. It gives no
numbers: neither the order of the words, nor how a seed fills them, nor the shift register of the Vector engines of trn1
and trn2. Here all engines run XORWOW, so numbers are reproducible but are not those of a device.
"""

from __future__ import annotations

from ..numerics.xorwow import Xorwow
from ..terms.enums import Engine
from ..terms.spec import DataNeeded

STREAMS = {Engine.gpsimd: 1, Engine.vector: 4}


class RandomState:
    """The generators of a core; unseeded ones start from the core's number, so that cores differ and runs repeat."""

    def __init__(self, core_number: int) -> None:
        self._core_number = core_number
        self._generators: dict[Engine, Xorwow] = {}
        self._lost: set[Engine] = set()

    @property
    def is_used(self) -> bool:
        """Whether numbers were drawn or a generator was seeded."""
        return bool(self._generators)

    def of(self, engine: Engine) -> Xorwow:
        """Return the generators of an engine, made when they are first needed.

        Raises:
            DataNeeded: if their state depends on values that this launch has left out.
        """
        if engine in self._lost:
            raise DataNeeded("the random number generators")
        if engine not in self._generators:
            self._generators[engine] = Xorwow(STREAMS[engine], self._core_number, STREAMS[engine])
        return self._generators[engine]

    def lose(self, engine: Engine) -> None:
        """Record that the state of an engine's generators is unknown, because this launch left out a draw or a seed."""
        self._lost.add(engine)
