# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A numpy simulator of NKI that runs kernels eagerly on the CPU and checks them against the documented rules.

The modules that replace ``nki``, ``nki.isa`` and ``nki.language`` are in :mod:`nkilib.simulator.api`; kernels get them
from :mod:`nkilib.nki`. This module contains the functions and classes that AWS's API does not have.

- ``api``: the replacements of NKI's modules;
- ``language``: the functions of ``nki.language``;
- ``engines``: the instructions, by engine;
- ``isa``: code that all instructions share: definition, checks, operators;
- ``machine``: the cores, and how they issue, loop and synchronise;
- ``memory``: storages, and the record of the elements that were written;
- ``tensors``: tensors, their views, and registers;
- ``numerics``: arithmetic, casts and activation functions;
- ``terms``: types, enumerations, errors and checks that all other packages use;
- ``hardware``: the hardware generations, and the simulator's current options;
- ``launch``: how a kernel is called;
- ``replay``: plans of launches, run again without tracing;
- ``timing``: the performance model;
- ``profiling``: profiles and their explanation;
- ``install``: ``install()``, after which ``import nki`` imports the simulator;
- ``__main__``: the command ``python -m nkilib.simulator``, which runs a script with this ``nki``;
- ``xla_stand_in``: a stand-in for ``torch_xla`` for scripts.
"""

from typing import TYPE_CHECKING, Any

import nkilib._refuse_mixture  # noqa: F401

from ..base.missing_names import missing_name
from ..base.statements import Work, states_trips, states_work
from .hardware.options import Options, using
from .install import install
from .language.programs import explain_index
from .launch.arguments import Uncomputed
from .launch.kernel import run_launches_by
from .launch.ranks import PerRank, RankedKernel, Ranks, per_rank, ranks
from .launch.simulating import simulate
from .machine.records import Record, recording
from .replay.counts import LaunchCounts, ReplayCounts, replay_counts
from .replay.launch import LAUNCHES
from .terms.dtypes import packed
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
from .terms.spec import Spec, spec
from .timing.parameters import AS_ISSUED, ModelParameters

if TYPE_CHECKING:
    from .profiling.profile import Profile, profile

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

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return ``Profile`` or ``profile``; their module is loaded at first use, because launches do not need it."""
        if name not in ("Profile", "profile"):
            raise missing_name(__name__, name, __all__)
        from .profiling import profile as module

        globals().update(Profile=module.Profile, profile=module.profile)
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
