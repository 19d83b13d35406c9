# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions that generate numbers: ``iota``, and random numbers.

- :func:`rng`, :func:`rand2`, :func:`dropout`: random numbers;
- :func:`set_rng_seed`, :func:`rand_set_state`, :func:`rand_get_state`: the state of the generators;
- :func:`iota`: indices by a pattern.

Random numbers come from ``RandomState`` in numerics/random_state.py. They are reproducible, and differ from the numbers
of a device. Each partition (lane) has generators of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...hardware.generations import Generation
from ...isa.checks import same_tile_size
from ...isa.definition import SBUF, Operand, output, vector
from ...machine.issue import Call, instruction
from ...numerics.casts import store_float
from ...numerics.random_state import GENERATORS_PER_LANE, WORDS
from ...tensors.device_integers import DeviceInteger
from ...tensors.tensor import NkiTensor
from ...tensors.view import assumed_partition
from ...terms.dtypes import (
    FLOATS,
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e5m2,
    float8_e8m0fnu,
    float16,
    float32,
    int8,
    int16,
    int32,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from ...terms.enums import Engine, nc_version
from ...terms.errors import NkiValidationError
from ...terms.spec import DataNeeded
from ...timing import costs
from ..actions import put, stored_type
from ..vector.selection import affine_values

_INTEGERS = frozenset({int8, int16, int32, uint8, uint16, uint32})
_UNIFORM = _INTEGERS | {float8_e4m3, float8_e5m2, float16, bfloat16, float32, tfloat32}
# float8_e8m0fnu is a scale and has no zero.
_HAVE_ZERO = (FLOATS - {float8_e8m0fnu}) | _INTEGERS | {bool_}
_SEEDS = frozenset({int32, uint32, float32})


def _lanes(tensor: NkiTensor) -> slice:
    start = assumed_partition(tensor)
    return slice(start, start + tensor.shape[0])


def _draw(call: Call, tensor: NkiTensor) -> npt.NDArray[np.uint32]:
    if tensor.storage.is_abstract:
        call.core.random.lose(call.engine)
        raise DataNeeded(repr(tensor), tensor.storage.origin)
    return call.core.random.of(call.engine).draw(_lanes(tensor), tensor.free_size)


def _require_generation(engine: Engine, generation: Generation, since: nc_version, name: str) -> None:
    if generation.version.value < since.value:
        raise NkiValidationError(f"engine=nki.isa.engine.{engine.name} needs {name} or newer")


def _rng_rule(engine: Engine, generation: Generation, _: Mapping[str, Any]) -> None:
    if engine is Engine.gpsimd:
        _require_generation(engine, generation, nc_version.gen3, "trn2")


@instruction(
    operands=(output("dst", dtypes=_INTEGERS),),
    on=(Engine.vector, Engine.gpsimd),
    engine_rule=_rng_rule,
    cost=costs.assumed("dst"),
)
def rng(call: Call, dst: NkiTensor, engine: Engine = Engine.vector) -> None:
    """Fill ``dst`` with random bits.

    An element of b bits gets the low b bits of a random 32-bit number. ``set_rng_seed`` seeds the Vector engine.
    ``rand_set_state`` sets the state of GpSimd, and on trn3 of the Vector engine too. ``engine=nki.isa.engine.gpsimd``
    needs trn2 or newer.
    """
    dst.array[...] = _draw(call, dst).reshape(dst.shape).astype(dst.array.dtype)


def _column(value: float | NkiTensor) -> npt.NDArray[Any]:
    # A float64 array that broadcasts over (P, elements).
    if isinstance(value, NkiTensor):
        return value.array.reshape(value.shape[0], 1).astype(np.float64)
    return np.full((1, 1), value, np.float64)


@instruction(
    operands=(
        output("dst", dtypes=_UNIFORM),
        vector("min", "dst", accepts_scalar=True, dtypes=frozenset({float32})),
        vector("max", "dst", accepts_scalar=True, dtypes=frozenset({float32})),
    ),
    on=(Engine.vector,),
    since=nc_version.gen4,
    cost=costs.assumed("dst"),
)
def rand2(call: Call, dst: NkiTensor, min: float | NkiTensor, max: float | NkiTensor) -> None:
    """Compute ``min + u * (max - min)`` in float32, ``u`` uniform in [0, 1), cast to the type of ``dst``.

    ``min`` and ``max`` are numbers, or float32 tiles of shape (P, 1) with the bounds of each partition.

    Raises:
        NkiValidationError: in some partition ``min`` is not less than ``max``, or a bound is not finite.
    """
    if dst.storage.is_abstract:
        call.core.random.lose(call.engine)
    for bound in (min, max):
        if isinstance(bound, NkiTensor):
            bound.storage.need_values(bound)  # for the check
    low, high = (_column(bound).astype(np.float32).astype(np.float64) for bound in (min, max))
    is_range = np.broadcast_to((low < high) & np.isfinite(low) & np.isfinite(high), (dst.shape[0], 1))
    if not is_range.all():
        partition = int(np.argmin(is_range))
        bounds = [float(np.broadcast_to(bound, is_range.shape)[partition, 0]) for bound in (low, high)]
        raise NkiValidationError(
            f"min must be less than max as float32, and both finite, got {bounds[0]} and {bounds[1]} in partition "
            f"{partition}"
        )
    # In float64, where neither the product nor the difference of the bounds rounds or overflows; float32 keeps min <=
    # value <= max.
    unit = _draw(call, dst) * 2.0**-32
    store_float(dst.array, (low + unit * (high - low)).astype(np.float32), dst.dtype)


@instruction(
    operands=(
        output("dst", dtypes=_HAVE_ZERO),
        Operand("data", dtypes=_HAVE_ZERO),
        vector("prob", "data", accepts_scalar=True, dtypes=FLOATS),
    ),
    on=(Engine.vector,),
    cost=costs.assumed("dst"),
)
def dropout(call: Call, dst: NkiTensor, data: NkiTensor, prob: float | NkiTensor) -> None:
    """Copy ``data`` with every element replaced by 0 with probability ``prob``; the other elements are not rescaled.

    ``prob`` is a number in [0, 1], or a tile of shape (P, 1) with the probability of each partition: of type float32
    for integer ``data``, else of any float type. ``dst`` has the type of ``data``.
    """
    same_tile_size({"dst": dst, "data": data}, "dst", "data")
    if dst.dtype != data.dtype:
        raise NkiValidationError(f"operands 'dst' and 'data' must have one type, got {dst} and {data}")
    if not isinstance(prob, NkiTensor):
        if not 0 <= prob <= 1:
            raise NkiValidationError(f"prob must be a probability, in [0, 1], got {prob}")
    elif data.dtype.is_integer and prob.dtype != float32:
        raise NkiValidationError(f"operand 'prob' must be float32 for integer data, got {prob} and {data}")
    is_dropped = _draw(call, dst) < _column(prob).astype(np.float32) * 2.0**32
    kept = data.array.reshape(dst.shape)
    dst.array[...] = np.where(is_dropped.reshape(dst.shape), np.zeros((), kept.dtype), kept)


@instruction(
    operands=(Operand("src_seeds", dtypes=_SEEDS),),
    on=(Engine.vector,),
    cost=costs.assumed("src_seeds"),
)
def set_rng_seed(call: Call, src_seeds: NkiTensor) -> None:
    """Seed the random generators of the Vector engine with the 32 bits of ``src_seeds``, a tile of shape [1, 1].

    The same seed gives the same numbers on every core; the lanes, one for each partition, differ from each other.
    """
    if src_seeds.shape != (1, 1):
        raise NkiValidationError(f"operand 'src_seeds' must have shape [1, 1], got {src_seeds}")
    if src_seeds.storage.is_abstract:
        call.core.random.lose(Engine.vector)
        return
    (seed,) = np.ascontiguousarray(src_seeds.array).reshape(-1).view(np.uint32)
    call.core.random.of(Engine.vector).seed(int(seed))


def _state_rule(engine: Engine, generation: Generation, values: Mapping[str, Any]) -> None:
    if engine is Engine.vector:
        _require_generation(engine, generation, nc_version.gen4, "trn3")
    name = "dst" if "dst" in values else "src_seeds"
    tensor, words = values[name], GENERATORS_PER_LANE[engine] * WORDS
    if len(tensor.shape) != 2 or tensor.shape[1] != words:
        raise NkiValidationError(
            f"operand {name!r} must have shape [P, {words}] for engine=nki.isa.engine.{engine.name}, got {tensor}"
        )


@instruction(
    operands=(Operand("src_seeds", regions=SBUF, dtypes=frozenset({uint32})),),
    on=(Engine.gpsimd, Engine.vector),
    engine_rule=_state_rule,
    since=nc_version.gen3,
    cost=costs.assumed("src_seeds"),
)
def rand_set_state(call: Call, src_seeds: NkiTensor, engine: Engine = Engine.gpsimd) -> None:
    """Set the random generators of an engine's lanes; each partition of ``src_seeds`` holds the state of its lane.

    The call restores the state that ``rand_get_state`` stored. A partition has the 6 words of one generator on GpSimd,
    and the 24 words of four generators on the Vector engine, which needs trn3. Lanes with equal words give equal
    numbers.
    """
    if src_seeds.storage.is_abstract:
        call.core.random.lose(call.engine)
        return
    call.core.random.of(call.engine).words[_lanes(src_seeds)] = src_seeds.array


@instruction(
    operands=(output("dst", dtypes=frozenset({uint32})),),
    on=(Engine.gpsimd, Engine.vector),
    engine_rule=_state_rule,
    since=nc_version.gen3,
    cost=costs.assumed("dst"),
)
def rand_get_state(call: Call, dst: NkiTensor, engine: Engine = Engine.gpsimd) -> None:
    """Store the state of the random generators of an engine's lanes, one lane in each partition of ``dst``.

    A partition has 6 words on GpSimd, and 24 on the Vector engine, which needs trn3. ``rand_set_state`` restores the
    state from these words.
    """
    if dst.storage.is_abstract:
        return
    dst.array[...] = call.core.random.of(call.engine).words[_lanes(dst)]


def _cast(values: npt.NDArray[np.int32], dst: NkiTensor) -> npt.NDArray[Any]:
    if not dst.dtype.is_integer:
        floats = values.astype(np.float32)
        if dst.dtype == float32:
            return floats
        cast = np.empty(values.shape, stored_type(dst))
        store_float(cast, floats, dst.dtype)
        return cast
    if dst.dtype.itemsize == values.itemsize:
        return values.view(dst.dtype.numpy)
    limits = np.iinfo(dst.dtype.numpy)
    return np.clip(values, limits.min, limits.max).astype(dst.dtype.numpy)


@instruction(
    operands=(output("dst", regions=SBUF),),
    on=(Engine.gpsimd,),
    cost=costs.counted,
)
def iota(
    call: Call,
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    offset: int | DeviceInteger = 0,
    channel_multiplier: int = 0,
) -> None:
    """Generate ``offset + partition * channel_multiplier + sum(step_k * i_k)`` in ``dst``.

    ``pattern`` is ``[[step, num], ...]`` with up to four pairs; the index i_k runs from 0 to num_k - 1, the last index
    fastest. The product of all ``num`` is the number of elements per partition. The numbers are computed in 32-bit
    integers and cast to the type of ``dst``. ``offset`` may be a register or an ``NkiScalar`` of int32.
    """
    put(call.core, dst, _cast(affine_values(dst, pattern, offset, channel_multiplier).reshape(dst.shape), dst))
