# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Costs of instructions for their engines, in cycles. Modelled, not measured.

A cost is a function from :class:`CostInputs` to cycles (:data:`Cost`); the definition of each instruction has one.
:func:`streamed` and :func:`assumed` make costs for many instructions. The other functions give the costs of the
instructions that their docstrings name.

N is the number of elements in a partition of the largest operand of an instruction. No instruction takes less than
about 64 cycles.

Sources: the "Estimated instruction cost" in older revisions of ``nki/api/nki/isa/__init__.py``, and the architecture
guides (``nki/guides/architecture``). Costs that neither source states are fields of :class:`ModelParameters`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..hardware.generations import Generation
from ..terms import dtypes as dt
from ..terms.enums import Engine, MemoryRegion, matmul_perf_mode, reduce_cmd
from .footprints import Form
from .parameters import ModelParameters

LEAST_CYCLES = 64.0
# Cycles to read out the accumulator registers after a reduction.
_READ_REGISTERS = 64.0
FAST_TYPES = frozenset({dt.bfloat16, dt.float16})
# Cycles per element of ``exponential`` in bfloat16 (trn3).
EXPONENTIAL_BF16_CYCLES = 0.25


class CostInputs(NamedTuple):
    """The properties of a call of an instruction that its cost depends on.

    Attributes:
        engine: the engine that runs the instruction.
        values: by parameter name, the shape and type (:class:`Form`) of each tensor, and the values of the parameters
            in ``instruction.DECIDING``.
        generation: the hardware.
        parameters: the assumptions of the model.
    """

    engine: Engine
    values: Mapping[str, Any]
    generation: Generation
    parameters: ModelParameters

    def elements(self, *names: str) -> int:
        """Return the number of elements in a partition of the largest of the operands ``names``."""
        return max(self.values[name].free_size for name in names)

    def tiles(self, *names: str) -> list[Form]:
        """Return the forms of those operands in ``names`` that are tensors."""
        values = (self.values[name] for name in names)
        return [value for value in values if isinstance(value, Form)]


Cost = Callable[[CostInputs], float]


def streamed(*names: str, cycles: float = 1.0, extra: float = 0.0) -> Cost:
    """Return the cost ``max(64, cycles * N) + extra`` of an instruction that processes its elements one after the
    other.

    Args:
        names: the operands among which the largest determines N.
        cycles: cycles per element.
        extra: further cycles.
    """
    return lambda call: max(LEAST_CYCLES, cycles * call.elements(*names)) + extra


def assumed(*names: str) -> Cost:
    """Return the cost of an instruction for which nothing is published: ``ModelParameters.other_cycles * N`` cycles.

    Args:
        names: the operands among which the largest determines N.
    """
    return lambda call: max(LEAST_CYCLES, call.parameters.other_cycles * call.elements(*names))


def _fast_share(call: CostInputs, tiles: list[Form]) -> float:
    is_vector = call.engine is Engine.vector and call.generation.timing.has_fast_vector_modes
    if not is_vector or not all(tile.dtype in FAST_TYPES for tile in tiles):
        return 1.0
    in_psum = sum(tile.buffer is MemoryRegion.psum for tile in tiles)
    if not call.parameters.follows_published_modes:
        return 0.25 if not in_psum and all(tile.is_contiguous() for tile in tiles) else 0.5
    has_runs = all(tile.has_runs() for tile in tiles)
    if not in_psum:
        return 0.25 if has_runs else 0.5
    return 0.5 if in_psum == 1 and has_runs else 1.0


def copied(*names: str) -> Cost:
    """Return the cost of ``tensor_copy`` and ``tensor_scalar``: N cycles, or less in a fast mode.

    From trn2 on Vector has fast modes for 16-bit types. These modes take N/4 cycles from SBUF to SBUF if the elements
    of a row are contiguous in source and destination. They take N/2 cycles if the elements are not contiguous, or if
    the elements are contiguous and one operand is in PSUM.

    Args:
        names: the parameter names of the operands.
    """

    def cost(call: CostInputs) -> float:
        return max(LEAST_CYCLES, call.elements(*names) * _fast_share(call, call.tiles(*names)))

    return cost


# The operators that ``tensor_tensor`` runs at twice the rate in 16-bit floats.
_FAST_OPERATORS = frozenset({"add", "subtract", "multiply"})


def of_two_tiles(first: str, second: str, dst: str = "dst") -> Cost:
    """Return the cost of ``tensor_tensor``: 2N cycles, or N in a fast mode.

    Two fast modes exist: one if exactly one input is in PSUM, and from trn2 on one for 16-bit floats in SBUF. The API's
    text limits the second mode to bfloat16, contiguous inputs, and addition, subtraction and multiplication; the trn2
    guide names both 16-bit floats.

    Args:
        first: the parameter name of the first input.
        second: the parameter name of the second input.
        dst: the parameter name of the result.
    """

    def cost(call: CostInputs) -> float:
        tiles = call.tiles(first, second, dst)
        has_modes = call.generation.timing.has_fast_vector_modes
        is_fast = has_modes and all(tile.dtype in FAST_TYPES for tile in tiles)
        if call.parameters.follows_published_modes:
            inputs = call.tiles(first, second)
            in_psum = sum(tile.buffer is MemoryRegion.psum for tile in inputs)
            is_short = getattr(call.values["op"], "key", "") in _FAST_OPERATORS
            is_fast = is_fast and not in_psum and is_short and all(tile.has_runs() for tile in inputs)
            is_fast = is_fast or in_psum == 1
        else:
            is_fast = is_fast or any(tile.buffer is MemoryRegion.psum for tile in tiles)
        return max(LEAST_CYCLES, call.elements(dst) * (1.0 if is_fast else 2.0))

    return cost


def scalar_and_tile(call: CostInputs) -> float:
    """Return the cost of ``scalar_tensor_tensor``: 2N cycles on trn1, N from trn2 on.

    With an operand in PSUM the cost is about N + 100. A result ``reduce_res`` adds 64. Evidence for N from trn2 on: 64
    instructions on 512 float32 columns in SBUF take at most 0.64 us each in the hyper-connection of
    jinhuang12/vllm-neuron, including 100 cycles between two instructions.
    """
    elements = call.elements("dst")
    in_psum = any(tile.buffer is MemoryRegion.psum for tile in call.tiles("dst", "data", "operand1"))
    read = _READ_REGISTERS if call.values.get("reduce_res") is not None else 0.0
    is_streamed = call.parameters.streams_scalar_tensor_tensor and call.generation.timing.has_fast_vector_modes
    cycles = elements + 100.0 if in_psum else (1.0 if is_streamed else 2.0) * elements
    return max(LEAST_CYCLES, cycles) + read


def reduced(call: CostInputs) -> float:
    """Return the cost of ``tensor_reduce``: N cycles.

    ``ModelParameters.halves_bf16_max`` makes it N/2 for 16-bit tiles with the operator add or max.
    """
    is_fast = all(tile.dtype in FAST_TYPES for tile in call.tiles("data", "dst"))
    is_short = getattr(call.values["op"], "key", "") in ("add", "maximum")
    share = 0.5 if call.parameters.halves_bf16_max and is_fast and is_short else 1.0
    return max(LEAST_CYCLES, call.elements("data") * share)


def activated(call: CostInputs) -> float:
    """Return the cost of ``activation`` on Scalar: N cycles, or N/2 for bfloat16 on trn3; a reduction adds 64 cycles.

    Nothing is published for GpSimd, which has the instruction from trn3 on; its cost is ``ModelParameters.other_cycles
    * N``.
    """
    if call.engine is Engine.gpsimd:
        return max(LEAST_CYCLES, call.parameters.other_cycles * call.elements("data"))
    is_bf16 = all(tile.dtype == dt.bfloat16 for tile in call.tiles("data", "dst"))
    rate = call.generation.timing.scalar_bf16_per_cycle if is_bf16 else 1
    reads = call.values.get("reduce_res") is not None or call.values.get("reduce_cmd") not in (None, reduce_cmd.idle)
    return max(LEAST_CYCLES, call.elements("data") / rate) + (_READ_REGISTERS if reads else 0.0)


def exponential(call: CostInputs) -> float:
    """Return the cost of ``exponential`` of trn3: N/4 cycles for bfloat16.

    Nothing is published for float32: see ``ModelParameters.fp32_exponential_cycles``.
    """
    is_bf16 = call.values["src"].dtype == dt.bfloat16
    return max(
        LEAST_CYCLES,
        call.elements("src") * (EXPONENTIAL_BF16_CYCLES if is_bf16 else call.parameters.fp32_exponential_cycles),
    )


def selected(call: CostInputs) -> float:
    """Return the cost of ``select_reduce``: ``ModelParameters.select_reduce_cycles * N`` (nothing is published)."""
    return max(LEAST_CYCLES, call.elements("on_true") * call.parameters.select_reduce_cycles)


def inverted(call: CostInputs) -> float:
    """Return the cost of ``reciprocal`` on Vector: 8N cycles. No other engine has a separate instruction for it."""
    return max(LEAST_CYCLES, 8.0 * call.elements("data"))


def filled(call: CostInputs) -> float:
    """Return the cost of ``memset``: N cycles, or N/2 for a zero in a 16-bit float."""
    is_fast = call.values["dst"].dtype in FAST_TYPES and call.values["value"] == 0
    return max(LEAST_CYCLES, call.elements("dst") * (0.5 if is_fast else 1.0))


def counted(call: CostInputs) -> float:
    """Return the cost of ``iota`` on GpSimd: 150 + N cycles."""
    return 150.0 + call.elements("dst")


def sorted_out(call: CostInputs) -> float:
    """Return the cost of ``topk`` on GpSimd: 4n + K cycles for K results, sorted or not.

    n is the parameter ``n`` of the instruction.
    """
    return 4.0 * float(call.values["n"]) + call.elements("val_dst")


def multiplied(call: CostInputs) -> float:
    """Return the cost of ``nc_matmul``: max(min(64, columns of stationary), columns of moving) cycles.

    float32 takes four times as long; the performance mode ``double_row`` halves the numbers of columns.
    """
    stationary, moving = call.values["stationary"], call.values["moving"]
    rows = 2 if call.values.get("perf_mode") is matmul_perf_mode.double_row else 1
    columns = max(min(LEAST_CYCLES, stationary.free_size / rows), moving.free_size / rows)
    return columns * (4.0 if moving.dtype == dt.float32 else 1.0)


def transposed(call: CostInputs) -> float:
    """Return the cost of ``nc_transpose`` of P partitions with F elements each.

    The cost is max(P, min(64, F)) cycles on the Tensor engine and max(64, F) cycles on the Vector engine.
    """
    data = call.values["data"]
    if call.engine is Engine.tensor:
        return max(float(data.shape[0]), min(LEAST_CYCLES, data.free_size))
    return max(LEAST_CYCLES, data.free_size)
