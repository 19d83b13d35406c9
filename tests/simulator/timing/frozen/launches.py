# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The launches whose modelled times are frozen: tutorial-like kernels and those of this library.

``python -m tests.simulator.timing.frozen.launches`` writes the table beside this file. It was written once, before the
model knew what a compiler does to a kernel, and is the reference about ``AS_ISSUED``: no change of the model may change
it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nkilib.experimental.loss.profiling import profile_launch
from nkilib.experimental.loss.tiling import Tiling
from nkilib.nki import nki
from nkilib.simulator import ModelParameters, profile, using
from nkilib.simulator.timing.parameters import AS_ISSUED

from .kernels import CASES

TIMES = Path(__file__).with_name("times.json")
TARGETS = ("trn1", "trn2", "trn3")
_FOR_TWO_CORES = {"of both cores", "RMSNorm", "matmul into zeros"}
_NOT_ON_TRN1 = {"gather and scatter"}


class LibraryCase(NamedTuple):
    """A launch of a kernel of this library. Its tiling is fixed: the chooser may find others as the model changes."""

    positions: int
    vocabulary: int
    dtype: str
    direction: str
    tiling: Tiling
    extended: bool = False


# The forward has a form that is chosen by its modelled time; the one that was frozen is this.
_FORWARD = {"exact_maximum": True}
# A change of these kernels writes their rows again; it says nothing about the model then.
LIBRARY = {
    "cross-entropy forward, bfloat16": LibraryCase(1024, 32128, "bfloat16", "forward", Tiling(128, 8032)),
    "cross-entropy backward, bfloat16": LibraryCase(1024, 32128, "bfloat16", "backward", Tiling(128, 8032)),
    "cross-entropy forward, float32": LibraryCase(384, 50304, "float32", "forward", Tiling(128, 6288)),
    "cross-entropy backward, float32": LibraryCase(384, 50304, "float32", "backward", Tiling(128, 6288)),
    "extended forward, bfloat16": LibraryCase(200, 128256, "bfloat16", "forward", Tiling(100, 4008), True),
    "extended backward, bfloat16": LibraryCase(200, 128256, "bfloat16", "backward", Tiling(100, 4008), True),
}


class Launch(NamedTuple):
    """A kernel of :data:`CASES` or :data:`LIBRARY` on a generation."""

    case: str
    target: str
    cores: int

    def __str__(self) -> str:
        return f"{self.case}, {self.target}, cores={self.cores}"

    def time_us(self, parameters: ModelParameters) -> float:
        """Modelled, not measured."""
        if self.case in LIBRARY:
            of = LIBRARY[self.case]
            return profile_launch(
                *of[:5],
                target=self.target,
                cores=self.cores,
                parameters=parameters,
                extended=of.extended,
                **_FORWARD if of.direction == "forward" else {},
            ).time_us
        kernel, arguments = CASES[self.case]
        with using(target=self.target):
            return profile(nki.jit(kernel)[self.cores], *arguments, parameters=parameters).time_us


def _cores_of(case: str, target: str) -> tuple[int, ...]:
    return (1, 2) if target != "trn1" and case in _FOR_TWO_CORES else (1,)


def launches() -> Iterator[Launch]:
    """Every kernel on every generation that runs it; of those that cores share, on one core and on two."""
    for target in TARGETS:
        is_first = target == "trn1"
        for case in CASES:
            if not is_first or case not in _NOT_ON_TRN1:
                yield from (Launch(case, target, cores) for cores in _cores_of(case, target))
        if not is_first:
            yield from (Launch(case, target, cores) for case in LIBRARY for cores in (1, 2))


def frozen_launches() -> list[tuple[Launch, float]]:
    """The launches, and what they took, in microseconds."""
    return [(Launch(*row["launch"]), row["time_us"]) for row in json.loads(TIMES.read_text())]


if __name__ == "__main__":
    rows = [json.dumps({"launch": launch, "time_us": launch.time_us(AS_ISSUED)}) for launch in launches()]
    TIMES.write_text("[\n" + ",\n".join(rows) + "\n]\n")
