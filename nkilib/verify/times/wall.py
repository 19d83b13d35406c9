# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The clock on the wall: what is left where the SDK has none that answers."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from nkilib.verify.observation import Array
from nkilib.verify.times.timed import Timed

_WARM_UP: Final = 2
_MOST: Final = 15
# Where a launch compiles or loads its program anew, few are enough.
_LEAST: Final = 3
_SECONDS: Final = 30.0


def wall_times(launch: Timed) -> Array:
    """Seconds of each of some launches, the first ones left out: transfers of arrays and loading the program count."""
    arrays = launch.arrays()
    for _ in range(_WARM_UP):
        launch.launch(arrays)
    found: list[float] = []
    while len(found) < _LEAST or (len(found) < _MOST and sum(found) < _SECONDS):
        start = time.perf_counter()
        launch.launch(arrays)
        found.append(time.perf_counter() - start)
    return np.array(found)
