# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The wall clock, which is used if no clock of the SDK answers."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from nkilib.verify.observation import Array
from nkilib.verify.times.timed import Timed

_WARM_UP: Final = 2
_MOST: Final = 15
# If a launch compiles or loads its program again, few are enough.
_LEAST: Final = 3
_SECONDS: Final = 30.0


def wall_times(launch: Timed) -> Array:
    """Return the seconds of each of some launches after the first ones; they include transfers and program loading."""
    arrays = launch.arrays()
    for _ in range(_WARM_UP):
        launch.launch(arrays)
    seconds: list[float] = []
    while len(seconds) < _LEAST or (len(seconds) < _MOST and sum(seconds) < _SECONDS):
        start = time.perf_counter()
        launch.launch(arrays)
        seconds.append(time.perf_counter() - start)
    return np.array(seconds)
