"""``sendrecv``: the two cores of a logical NeuronCore swap tiles.

Source: docstring of ``sendrecv``.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy.typing as npt

from ...isa.operand import SBUF, Operand, output
from ...machine.call import Call
from ...machine.issue import instruction
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import MOVABLE
from ...terms.enums import Engine, nc_version
from ...terms.enums import dma_engine as DmaEngine
from ...terms.errors import NkiValidationError

_CORES = 2
# Elements a partition that the DMA engine of GpSimd takes: 1024 bytes of 32-bit types, 512 of 16-bit and 256 of 8-bit.
_GPSIMD_ELEMENTS_MAX = 256


class _Parcel(NamedTuple):
    """What a core hands to the other one: the values as they were, what both must agree on, and what its observers
    bring."""

    core: int
    src: NkiTensor
    dma_engine: DmaEngine
    values: npt.NDArray[Any] | None
    arrived: list[Any]


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
    """Swap tiles with the other core: its ``src`` lands in ``dst`` here, and ``src`` from here in its ``dst``.

    Both cores call it with the same ``pipe_id``, and neither goes on before both have come. All four tiles have one
    shape and type. ``dma_engine=gpsimd_dma`` takes up to 256 elements a partition.

    Raises:
        BarrierError: if the other core ends without coming, or waits elsewhere: at another ``pipe_id`` or a barrier.
    """
    other = 1 - call.core.number
    if call.core.launch.cores != _CORES:
        raise NkiValidationError("needs a launch on two cores: kernel[2](...)")
    for name, rank in (("send_to_rank", send_to_rank), ("recv_from_rank", recv_from_rank)):
        if not _is_integer(rank) or rank != other:
            raise NkiValidationError(f"{name} must be the other core, {other} on core {1 - other}, got {rank!r}")
    if not _is_integer(pipe_id) or pipe_id < 0:
        raise NkiValidationError(f"pipe_id must be an integer >= 0, got {pipe_id!r}")
    _check_tiles(src, dst, dma_engine)
    arrived = call.core.observers.arrive(call)
    values = None if src.storage.is_abstract else src.array.copy()
    call.core.loads.settle()  # what they come from may be the other core's to change from here on
    own = _Parcel(call.core.number, src, dma_engine, values, arrived)
    (received,) = call.core.launch.barrier.meet(f"sendrecv(pipe_id={pipe_id})", own)
    _check_agreement(*sorted((own, received), key=lambda parcel: parcel.core))
    call.core.observers.meet(call, received.arrived)
    if received.values is not None:
        dst.array[...] = received.values


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_tiles(src: NkiTensor, dst: NkiTensor, dma_engine: DmaEngine) -> None:
    if not isinstance(dma_engine, DmaEngine):
        raise NkiValidationError(f"dma_engine must be a member of nki.isa.dma_engine, got {dma_engine!r}")
    if (src.shape, src.dtype) != (dst.shape, dst.dtype):
        raise NkiValidationError(f"operands 'src' and 'dst' must have one shape and type, got {src} and {dst}")
    elements = prod(src.shape[1:])
    if dma_engine is DmaEngine.gpsimd_dma and elements > _GPSIMD_ELEMENTS_MAX:
        raise NkiValidationError(
            f"dma_engine=gpsimd_dma takes at most {_GPSIMD_ELEMENTS_MAX * src.dtype.itemsize} bytes a partition of "
            f"{src.dtype}, got {elements * src.dtype.itemsize} in {src}; use dma_engine.dma, or several calls"
        )


def _check_agreement(first: _Parcel, second: _Parcel) -> None:
    """Both cores find the same fault: whichever is reported, the message is the same."""
    sides = f"core 0 sends {first.src} and core 1 sends {second.src}"
    if (first.src.shape, first.src.dtype) != (second.src.shape, second.src.dtype):
        raise NkiValidationError(f"the cores must swap tiles of one shape and type: {sides}")
    if first.dma_engine is not second.dma_engine:
        raise NkiValidationError(
            f"the cores must name one dma_engine: core 0 gives {first.dma_engine.name} and core 1 "
            f"{second.dma_engine.name}"
        )
