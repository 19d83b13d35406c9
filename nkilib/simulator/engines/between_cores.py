# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions by which the two cores of a launch synchronise and exchange tiles.

- :func:`core_barrier`, by :func:`synchronise_on`: the barrier.
- :func:`sendrecv`: swaps tiles of the cores.
- :func:`sendrecv_compute`: reduces each core's own tensor with the received tensor.
- :func:`exchange`: sends a :class:`Parcel` to the other core and returns the received parcel, whose values
  :func:`received_values` returns.
- :func:`check_other_core`, :func:`check_pair`: check the ranks and the tensors of a call.

Sources: docstring of ``sendrecv``; the page of ``nki.isa.sendrecv_compute`` in NKI 0.7. What this page leaves open
works as in ``sendrecv`` and, for the arithmetic, as in ``dma_compute``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..isa.definition import HBM_SHARED, SBUF, Operand, output
from ..isa.operators import operator_key
from ..machine.issue import Call, instruction
from ..machine.overlapping_copies import check_copy
from ..numerics.operators import ARITHMETIC
from ..tensors.tensor import NkiTensor
from ..terms.argument_checks import is_integer
from ..terms.dtypes import COMPUTABLE, COPYABLE, MOVABLE, float32
from ..terms.enums import Engine, MemoryRegion, nc_version
from ..terms.enums import dma_engine as DmaEngine
from ..terms.errors import BarrierError, NkiValidationError
from .dma_endpoints import pass_over, read, write

_CORES = (0, 1)


def synchronise_on(call: Call, data: NkiTensor) -> None:
    """Synchronise the two cores, each with its own ``call``, and order their accesses to ``data``.

    Raises:
        BarrierError: the other core ends without reaching the barrier, or waits on another tensor.
        RaceError: since the last barrier on ``data``, both cores accessed one of its elements, and one core wrote it.
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


@instruction(
    operands=(Operand("data", regions=frozenset(MemoryRegion), dtypes=COPYABLE, is_accessed=False),),
    on=(Engine.gpsimd, Engine.tensor, Engine.vector, Engine.scalar, Engine.sync),
    since=nc_version.gen3,
    is_lane_bound=False,
)
def core_barrier(call: Call, data: NkiTensor, cores: int | Sequence[int], engine: Engine = Engine.gpsimd) -> None:
    """Wait until both cores of a logical NeuronCore, ``cores=(0, 1)``, have reached the barrier.

    The barrier orders the accesses to ``data``, not accesses to other tensors: according to the documentation only one
    engine waits, and only instructions that depend on ``data`` wait for this engine. The documentation requires
    ``data`` in shared HBM; published kernels also synchronise on a tile in SBUF, each core on its own tile. A launch on
    one core does not wait, and accepts ``cores=(0)`` too, which published kernels pass.

    Raises:
        BarrierError: the other core ends without reaching the barrier, or waits on another tensor.
        RaceError: since the last barrier on ``data``, both cores accessed one of its elements, and one core wrote it.
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


@dataclass(frozen=True)
class Parcel:
    """The data that a core sends to the other core in an exchange.

    Attributes:
        core: the number of the sending core.
        src: the tensor that is sent.
        how: the name and value of a parameter, besides the tensors, that must be equal on both cores.
        values: a copy of the values of ``src``; None in a launch that does not compute them.
        arrived: the data that the observers of the sending core, such as the performance model, send to the observers
            of the receiving core.
    """

    core: int
    src: NkiTensor
    how: tuple[str, str]
    values: npt.NDArray[Any] | None
    arrived: list[Any]


def check_other_core(call: Call, send_to_rank: Any, recv_from_rank: Any) -> None:
    """Check that the launch is on two cores, and that ``send_to_rank`` and ``recv_from_rank`` name the other core.

    Raises:
        NkiValidationError: the launch is on one core, or a rank is not the other core; the message names the parameter.
    """
    other = 1 - call.core.number
    if call.core.launch.cores != len(_CORES):
        raise NkiValidationError("needs a launch on two cores: kernel[2](...)")
    for name, rank in (("send_to_rank", send_to_rank), ("recv_from_rank", recv_from_rank)):
        if not is_integer(rank) or rank != other:
            raise NkiValidationError(f"{name} must be the other core, {other} on core {1 - other}, got {rank!r}")


def check_pair(call: Call, src: NkiTensor, dst: NkiTensor) -> None:
    """Check that the sent tensor and the receiving tensor have one shape and type, and do not overlap.

    Raises:
        NkiValidationError: shapes or types differ; the message names both tensors.
        OverlappingCopyError: the tensors overlap, with ``overlapping_copies="error"``.
    """
    if (src.shape, src.dtype) != (dst.shape, dst.dtype):
        raise NkiValidationError(f"operands 'src' and 'dst' must have one shape and type, got {src} and {dst}")
    check_copy(call.core, dst, {"src": src}, None)


def _check_agreement(first: Parcel, second: Parcel) -> None:
    if (first.src.shape, first.src.dtype) != (second.src.shape, second.src.dtype):
        sides = f"core 0 sends {first.src} and core 1 sends {second.src}"
        raise NkiValidationError(f"the cores must swap tiles of one shape and type: {sides}")
    if first.how != second.how:
        name, value = first.how
        raise NkiValidationError(f"the cores must name one {name}: core 0 gives {value} and core 1 {second.how[1]}")


def exchange(call: Call, place: str, src: NkiTensor, how: tuple[str, str]) -> Parcel:
    """Wait for the other core, send it the values of ``src``, and return the parcel that the other core sent.

    Args:
        call: the running instruction.
        place: the name of the barrier at which both cores must arrive.
        src: the tensor that is sent.
        how: the name and value of a parameter, besides the tensors, that must be equal on both cores.

    Raises:
        BarrierError: the other core ends without reaching ``place``, or waits at another barrier.
        NkiValidationError: shape, type or ``how`` differ between the cores; both cores raise the same message.
    """
    call.core.meetings += 1
    arrived = call.core.observers.arrive(call)
    values = None if src.storage.is_abstract else src.array.copy()
    call.core.loads.settle()  # from here on the other core may change the memory that they come from
    own = Parcel(call.core.number, src, how, values, arrived)
    received: Parcel
    (received,) = call.core.launch.barrier.meet(place, own)
    _check_agreement(*sorted((own, received), key=lambda parcel: parcel.core))
    call.core.observers.meet(call, received.arrived)
    return received


def received_values(received: Parcel) -> npt.NDArray[Any]:
    """Return the values in a parcel of the other core.

    Raises:
        ValuesWanted: the parcel has only shape and type, because the launch left out the values of the sent tensor.
        DataNeeded: the parcel has only shape and type, because the launch is on shapes.
    """
    received.src.storage.need_values(received.src)
    assert received.values is not None
    return received.values


# Elements a partition that the DMA engine of GpSimd takes: 1024 bytes of 32-bit types, 512 of 16-bit and 256 of 8-bit.
_GPSIMD_ELEMENTS_MAX = 256


def _check_tiles(call: Call, src: NkiTensor, dst: NkiTensor, dma_engine: DmaEngine) -> None:
    if not isinstance(dma_engine, DmaEngine):
        raise NkiValidationError(f"dma_engine must be a member of nki.isa.dma_engine, got {dma_engine!r}")
    check_pair(call, src, dst)
    elements = prod(src.shape[1:])
    if dma_engine is DmaEngine.gpsimd_dma and elements > _GPSIMD_ELEMENTS_MAX:
        raise NkiValidationError(
            f"dma_engine=gpsimd_dma takes at most {_GPSIMD_ELEMENTS_MAX * src.dtype.itemsize} bytes a partition of "
            f"{src.dtype}, got {elements * src.dtype.itemsize} in {src}; use dma_engine.dma, or several calls"
        )


@instruction(
    operands=(Operand("src", regions=SBUF, dtypes=MOVABLE), output("dst", regions=SBUF, dtypes=MOVABLE)),
    on=(Engine.dma, Engine.gpsimd),
    since=nc_version.gen3,
    choose_engine=lambda values: Engine.gpsimd if values["dma_engine"] is DmaEngine.gpsimd_dma else Engine.dma,
    is_lane_bound=False,
    is_transfer=True,
)
def sendrecv(
    call: Call,
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: DmaEngine = DmaEngine.dma,
) -> None:
    """Swap tiles with the other core: the ``src`` of each core is copied to the ``dst`` of the other core.

    Both cores call this instruction with the same ``pipe_id``, and neither core continues before both have called it.
    All four tiles have one shape and type. ``dma_engine=gpsimd_dma`` takes at most 256 elements per partition.

    Raises:
        BarrierError: the other core ends without this call, or waits at another ``pipe_id`` or barrier.
    """
    check_other_core(call, send_to_rank, recv_from_rank)
    if not is_integer(pipe_id) or pipe_id < 0:
        raise NkiValidationError(f"pipe_id must be an integer >= 0, got {pipe_id!r}")
    _check_tiles(call, src, dst, dma_engine)
    received = exchange(call, f"sendrecv(pipe_id={pipe_id})", src, ("dma_engine", dma_engine.name))
    if dst.storage.is_abstract:
        return
    dst.array[...] = received_values(received)


_COMPUTE_REACH = SBUF | {MemoryRegion.private_hbm}
_REDUCTIONS = ("add", "maximum", "minimum")


@instruction(
    operands=(
        Operand("src", regions=_COMPUTE_REACH, dtypes=COMPUTABLE),
        output("dst", regions=_COMPUTE_REACH, dtypes=COMPUTABLE),
    ),
    on=(Engine.dma,),
    since=nc_version.gen3,
    is_lane_bound=False,
    is_transfer=True,
)
def sendrecv_compute(
    call: Call, src: NkiTensor, dst: NkiTensor, send_to_rank: int, recv_from_rank: int, reduce_op: Any
) -> None:
    """Compute ``dst = src <reduce_op> src of the other core`` on both cores, in the DMA engines.

    ``reduce_op`` is add, maximum or minimum. ``src`` and ``dst`` are both in SBUF or both in private HBM, in the same
    memory on both cores, and have one shape and type. The arithmetic is float32, and the result is cast to the type of
    ``dst``. Neither core continues before both have called the instruction. The n-th call of one core belongs to the
    n-th call of the other core.

    Raises:
        BarrierError: the other core ends without this call, or waits at another instruction.
    """
    check_other_core(call, send_to_rank, recv_from_rank)
    key = operator_key("reduce_op", reduce_op)
    if key not in _REDUCTIONS:
        raise NkiValidationError(f"reduce_op must be nl.add, nl.maximum or nl.minimum, got {reduce_op!r}")
    if src.buffer is not dst.buffer:
        raise NkiValidationError(f"operands 'src' and 'dst' must both be in sbuf or both in HBM, got {src} and {dst}")
    check_pair(call, src, dst)
    received = exchange(call, "sendrecv_compute", src, ("reduce_op and memory", f"nl.{key} in {src.buffer.name}"))
    if dst.storage.is_abstract:
        pass_over(call.core, dst, {"src": src})
        return
    result = np.empty(src.shape, np.float32)
    own = read(call.core, "src", src).astype(np.float32)
    ARITHMETIC[key](own, received_values(received).astype(np.float32), result)
    write(call.core, dst, result, float32)
