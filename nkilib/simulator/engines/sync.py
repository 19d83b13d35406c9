"""Synchronisation of the cores."""

from __future__ import annotations

from ..dtypes import MOVABLE
from ..enums import engine as engines
from ..enums import nc_version
from ..errors import BarrierError, NkiValidationError
from ..instruction import Call, instruction
from ..operands import HBM_SHARED, Operand
from ..races import check_races
from ..tensor import NkiTensor

_CORES = (0, 1)


@instruction(
    operands=(Operand("data", regions=HBM_SHARED, dtypes=MOVABLE, is_accessed=False),),
    on=(engines.gpsimd, engines.tensor, engines.vector, engines.scalar, engines.sync),
    since=nc_version.gen3,
    is_lane_bound=False,
)
def core_barrier(call: Call, data: NkiTensor, cores: tuple[int, ...], engine: engines = engines.gpsimd) -> None:
    """Wait until both cores of a logical NeuronCore have come here; ``cores`` must be ``(0, 1)``.

    It orders the accesses to ``data``, not those to other tensors: the documentation lets it hold up one engine, and
    what waits for it is what depends on ``data``.

    Raises:
        BarrierError: if the other core ends without coming, or waits on another tensor.
        RaceError: if both cores accessed an element of ``data`` since the last barrier on it, one of them writing.
    """
    if not isinstance(cores, tuple | list) or tuple(cores) != _CORES:
        raise NkiValidationError(f"cores must be (0, 1), got {cores!r}")
    if call.core.launch.cores != len(_CORES):
        raise NkiValidationError("needs a launch on two cores: kernel[2](...)")
    core = call.core
    own = core.shared_accesses.take(data.storage)
    ((other_storage, others),) = core.launch.barrier.meet("core_barrier", (data.storage, own))
    if other_storage is not data.storage:
        raise BarrierError(f"core_barrier: the cores wait on different tensors, {core.number} on {data}")
    if core.number == 0:  # one of them compares for both
        check_races(data.storage, own, others)
