# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``core_barrier``: synchronisation of the two cores."""

from __future__ import annotations

from collections.abc import Sequence

from ...isa.operand import HBM_SHARED, SBUF, Operand
from ...machine.call import Call
from ...machine.issue import instruction
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import COPYABLE
from ...terms.enums import Engine, nc_version
from ...terms.errors import BarrierError, NkiValidationError
from ...terms.regions import MemoryRegion

_CORES = (0, 1)


@instruction(
    operands=(Operand("data", regions=frozenset(MemoryRegion), dtypes=COPYABLE, is_accessed=False),),
    on=(Engine.gpsimd, Engine.tensor, Engine.vector, Engine.scalar, Engine.sync),
    since=nc_version.gen3,
    is_lane_bound=False,
)
def core_barrier(call: Call, data: NkiTensor, cores: int | Sequence[int], engine: Engine = Engine.gpsimd) -> None:
    """Wait until both cores of a logical NeuronCore have reached the barrier; ``cores`` must be ``(0, 1)``.

    The barrier orders the accesses to ``data``, not those to other tensors: according to the documentation it holds up
    one engine, and only instructions that depend on ``data`` wait for it. The documentation requires ``data`` in shared
    HBM; published kernels also synchronise on a tile in SBUF, each core on its own tile. A launch on one core does not
    wait: NKI 0.7 documents the barrier for logical NeuronCores of one core too, with the same ``cores``; published
    kernels give ``cores=(0)`` there.

    Raises:
        BarrierError: if the other core ends without reaching the barrier, or waits on another tensor.
        RaceError: if both cores accessed an element of ``data`` since the last barrier on it, one of them writing.
    """
    if data.buffer not in HBM_SHARED | SBUF:
        raise NkiValidationError(f"operand 'data' must be in shared_hbm, got {data}")
    core = call.core
    named = (cores,) if isinstance(cores, int) else tuple(cores) if isinstance(cores, tuple | list) else None
    is_alone = core.launch.cores == 1
    if named != _CORES and not (is_alone and named == (0,)):
        raise NkiValidationError(f"cores must be (0, 1), got {cores!r}")
    if is_alone:
        return
    synchronise_on(call, data)


def synchronise_on(call: Call, data: NkiTensor) -> None:
    """Synchronise the two cores, each with its own ``call``, and order their accesses to ``data``.

    Raises:
        BarrierError: if the other core ends without reaching the barrier, or waits on another tensor.
        RaceError: if both cores accessed an element of ``data`` since the last barrier on it, one of them writing.
    """
    core = call.core
    shared = data.storage if data.buffer in HBM_SHARED else None
    core.meetings += 1
    own = core.observers.arrive(call)
    core.loads.settle()  # from here on the other core may change the memory that they come from
    ((other, brought),) = core.launch.barrier.meet("core_barrier", (shared, own))
    if other is not shared:
        raise BarrierError(f"core_barrier: the cores wait on different tensors, {core.number} on {data}")
    core.observers.meet(call, brought)
