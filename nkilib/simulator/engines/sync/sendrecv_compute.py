# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``sendrecv_compute``: the two cores swap tensors, and each reduces its own tensor with the received one.

Source: the page of ``nki.isa.sendrecv_compute`` in NKI 0.7. Details that it leaves open work as in ``sendrecv`` and,
for the arithmetic, as in ``dma_compute``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...isa.operand import SBUF, Operand, output
from ...isa.operators import operator_key
from ...machine.call import Call
from ...machine.issue import instruction
from ...numerics.operators import ARITHMETIC
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import COMPUTABLE, float32
from ...terms.enums import Engine, nc_version
from ...terms.errors import NkiValidationError
from ...terms.regions import MemoryRegion
from ..dma.rows import pass_over, read, write
from .exchange import check_pair, check_ranks, exchange, received_values

_REACH = SBUF | {MemoryRegion.private_hbm}
_REDUCTIONS = ("add", "maximum", "minimum")


@instruction(
    operands=(Operand("src", regions=_REACH, dtypes=COMPUTABLE), output("dst", regions=_REACH, dtypes=COMPUTABLE)),
    on=(Engine.dma,),
    since=nc_version.gen3,
    is_lane_bound=False,
    is_transfer=True,
)
def sendrecv_compute(
    call: Call, src: NkiTensor, dst: NkiTensor, send_to_rank: int, recv_from_rank: int, reduce_op: Any
) -> None:
    """Compute ``dst = src <reduce_op> the other core's src`` on both cores, in the DMA engines.

    ``reduce_op`` is add, maximum or minimum. ``src`` and ``dst`` are both in SBUF or both in private HBM, in the same
    memory on both cores, and have one shape and type. The arithmetic is float32, cast to the type of ``dst``. Neither
    core continues before both have called it; calls of the two cores match in the order in which they are made.

    Raises:
        BarrierError: if the other core ends without calling it, or waits elsewhere.
    """
    check_ranks(call, send_to_rank, recv_from_rank)
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
