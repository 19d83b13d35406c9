"""A numpy simulator of NKI: runs kernels eagerly on the CPU and checks them against the documented rules.

The modules that stand for ``nki``, ``nki.isa`` and ``nki.language`` are in :mod:`nkilib.simulator.api`; kernels get
them from :mod:`nkilib.nki`. This module holds what AWS's API does not have.
"""

from .errors import BarrierError, NkiValidationError, OutOfRangeError, UninitializedReadError
from .explain import explain_index
from .options import Options, using
from .record import Record, recording

__all__ = [
    "BarrierError",
    "NkiValidationError",
    "Options",
    "OutOfRangeError",
    "Record",
    "UninitializedReadError",
    "explain_index",
    "recording",
    "using",
]
