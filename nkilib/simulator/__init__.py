"""A numpy simulator of NKI: runs kernels eagerly on the CPU and checks them against the documented rules.

The modules that stand for ``nki``, ``nki.isa`` and ``nki.language`` are in :mod:`nkilib.simulator.api`; kernels get
them from :mod:`nkilib.nki`. This module holds what AWS's API does not have.
"""

import nkilib._unmixed  # noqa: F401

from ..work import Work, states_work
from .install import install
from .language.explain import explain_index
from .machine.record import Record, recording
from .profiling.profile import Profile, profile
from .target.options import Options, using
from .terms.errors import (
    BarrierError,
    CapacityError,
    NkiValidationError,
    OutOfRangeError,
    RaceError,
    RegisterTypeError,
    UninitializedReadError,
)
from .terms.packed_arrays import packed
from .terms.spec import Spec, spec
from .timing.parameters import ModelParameters

__all__ = [
    "BarrierError",
    "CapacityError",
    "ModelParameters",
    "NkiValidationError",
    "Options",
    "OutOfRangeError",
    "Profile",
    "RaceError",
    "Record",
    "RegisterTypeError",
    "Spec",
    "UninitializedReadError",
    "Work",
    "explain_index",
    "install",
    "packed",
    "profile",
    "recording",
    "spec",
    "states_work",
    "using",
]
