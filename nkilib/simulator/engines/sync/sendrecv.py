# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``sendrecv``: the two cores of a logical NeuronCore swap tiles.

Source: docstring of ``sendrecv``.
"""

from __future__ import annotations

from math import prod

from ...isa.operand import SBUF, Operand, output
from ...machine.call import Call
from ...machine.issue import instruction
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import MOVABLE
from ...terms.enums import Engine, nc_version
from ...terms.enums import dma_engine as DmaEngine
from ...terms.errors import NkiValidationError
from ...terms.integers import is_integer
from .exchange import check_pair, check_ranks, exchange, received_values

# Elements a partition that the DMA engine of GpSimd takes: 1024 bytes of 32-bit types, 512 of 16-bit and 256 of 8-bit.
_GPSIMD_ELEMENTS_MAX = 256


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
    """Swap tiles with the other core: its ``src`` goes to ``dst`` here, and ``src`` from here to its ``dst``.

    Both cores call it with the same ``pipe_id``, and neither continues before both have called it. All four tiles
    have one shape and type. ``dma_engine=gpsimd_dma`` takes up to 256 elements a partition.

    Raises:
        BarrierError: if the other core ends without calling it, or waits elsewhere: at another ``pipe_id`` or a
            barrier.
    """
    check_ranks(call, send_to_rank, recv_from_rank)
    if not is_integer(pipe_id) or pipe_id < 0:
        raise NkiValidationError(f"pipe_id must be an integer >= 0, got {pipe_id!r}")
    _check_tiles(call, src, dst, dma_engine)
    received = exchange(call, f"sendrecv(pipe_id={pipe_id})", src, ("dma_engine", dma_engine.name))
    if dst.storage.is_abstract:
        return
    dst.array[...] = received_values(received)


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
