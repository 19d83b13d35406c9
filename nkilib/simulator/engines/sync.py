"""Synchronisation of the cores."""

from __future__ import annotations

from ..enums import engine as engines
from ..enums import nc_version
from ..errors import NkiValidationError
from ..instruction import Call, instruction
from ..operands import HBM_SHARED, Operand
from ..tensor import NkiTensor

_CORES = (0, 1)


@instruction(
    operands=(Operand("data", regions=HBM_SHARED, is_accessed=False),),
    on=(engines.gpsimd, engines.tensor, engines.vector, engines.scalar, engines.sync),
    since=nc_version.gen3,
    is_lane_bound=False,
)
def core_barrier(call: Call, data: NkiTensor, cores: tuple[int, ...], engine: engines = engines.gpsimd) -> None:
    """Wait until both cores of a logical NeuronCore have come here; ``cores`` must be ``(0, 1)``.

    Raises:
        BarrierError: if the other core ends without coming.
    """
    if not isinstance(cores, tuple | list) or tuple(cores) != _CORES:
        raise NkiValidationError(f"cores must be (0, 1), got {cores!r}")
    if call.core.launch.cores != len(_CORES):
        raise NkiValidationError("needs a launch on two cores: kernel[2](...)")
    call.core.launch.barrier.wait()
