# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Parts of the positions on NKI 0.7 as it is documented, with the simulator's bits."""

from __future__ import annotations

import pickle
from pathlib import Path

from tests.neuron import machine


def test_parts_have_the_simulators_bits(tmp_path: Path) -> None:
    results = []
    for backend in ("simulator", "neuron"):
        file = tmp_path / backend
        done = machine.run("-m", "tests.neuron.position_parts", file, backend=backend)
        assert done.returncode == 0, done.stderr
        results.append(pickle.loads(file.read_bytes()))
    assert len(results[0]) == 40
    assert results[0] == results[1]
