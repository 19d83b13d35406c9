# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A numpy simulator of NKI that runs kernels eagerly on the CPU and checks them against the documented rules.

The modules that replace ``nki``, ``nki.isa`` and ``nki.language`` are in :mod:`nkilib.simulator.api`; kernels get
them from :mod:`nkilib.nki`. This module contains the functions and classes that AWS's API does not have.
"""

import nkilib._unmixed  # noqa: F401

from ..base.work import Work, states_trips, states_work
from .hardware.options import Options, using
from .install import install
from .language.explain import explain_index
from .launch.kernel import run_launches_by
from .launch.ranks import PerRank, RankedKernel, Ranks, per_rank, ranks
from .launch.simulating import simulate
from .launch.uncomputed import Uncomputed
from .machine.record import Record, recording
from .profiling.profile import Profile, profile
from .replay.counts import LaunchCounts, ReplayCounts, replay_counts
from .replay.launch import LAUNCHES
from .terms.errors import (
    ArgumentTypeError,
    BarrierError,
    CapacityError,
    GridTypeError,
    GridValueError,
    IdenticalWritesError,
    MissingNameError,
    NkiValidationError,
    OutOfRangeError,
    OverlappingCopyError,
    PsumGroupError,
    RaceError,
    RegisterTypeError,
    SimulatorWarning,
    TensorTypeError,
    UncomputedError,
    UninitializedReadError,
)
from .terms.packed_arrays import packed
from .terms.spec import Spec, spec
from .timing.parameters import AS_ISSUED, ModelParameters

__all__ = [
    "AS_ISSUED",
    "ArgumentTypeError",
    "BarrierError",
    "CapacityError",
    "GridTypeError",
    "GridValueError",
    "IdenticalWritesError",
    "LaunchCounts",
    "MissingNameError",
    "ModelParameters",
    "NkiValidationError",
    "Options",
    "OutOfRangeError",
    "OverlappingCopyError",
    "PerRank",
    "Profile",
    "PsumGroupError",
    "RaceError",
    "RankedKernel",
    "Ranks",
    "Record",
    "RegisterTypeError",
    "ReplayCounts",
    "SimulatorWarning",
    "Spec",
    "TensorTypeError",
    "Uncomputed",
    "UncomputedError",
    "UninitializedReadError",
    "Work",
    "explain_index",
    "install",
    "packed",
    "per_rank",
    "profile",
    "ranks",
    "recording",
    "replay_counts",
    "simulate",
    "spec",
    "states_trips",
    "states_work",
    "using",
]

run_launches_by(LAUNCHES.run)
