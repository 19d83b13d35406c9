# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches of many positions, under a limit that splits few: ``python -m tests.neuron.position_parts FILE``."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np

from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental import loss
from nkilib.nki import nl

_FEATURES, _CLASSES = 20, 37


def results() -> list[np.ndarray]:
    """Return the results of two parts and a rest, with products of the operands' type and of another one."""
    rng, result, positions = np.random.default_rng(0), [], 300
    for options in ({}, {"compute_dtype": nl.bfloat16}):
        operands = (
            rng.standard_normal((positions, _FEATURES), dtype=np.float32),
            rng.standard_normal((_CLASSES, _FEATURES), dtype=np.float32),
            rng.integers(0, _CLASSES, positions, dtype=np.int32),
        )
        lse, upstream, bias = (rng.standard_normal(size, dtype=np.float32) for size in (positions, positions, _CLASSES))
        for cores in (1, 2):
            result += loss.linear_cross_entropy_forward[cores](*operands, bias, **options)
            result += loss.linear_cross_entropy_backward[cores](*operands, lse + 3, upstream, bias, **options)
            result += loss.linear_cross_entropy_forward_backward[cores](*operands, bias, grad_scale=0.1, **options)
    return result


if __name__ == "__main__":
    with shrunk(PlanLimits(positions=128)):
        arrays = results()
    Path(sys.argv[1]).write_bytes(pickle.dumps([(str(array.dtype), array.shape, array.tobytes()) for array in arrays]))
