# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks of the arguments of ``cross_entropy``, some of them for the other functions too, and conversion of targets.

- :func:`checked_options` and :func:`python_numbers` check the options, and :func:`check_arguments` the shapes and types
  of the arrays. :func:`check_range` checks the values of targets, where these are known. :func:`check_weight`,
  :func:`check_normalizer` and :func:`check_outputs` check one argument each.
- :func:`class_indices` and :func:`narrowed` convert targets to int32: a class, :data:`IGNORED` or :data:`OUT_OF_RANGE`.
- ``temperature`` may be a number, which is an option, or an array, which the kernels read. :func:`temperature_array`
  returns the array, :func:`check_temperatures` checks it, :func:`temperature_rows` returns the temperature of each
  position, and :func:`refuse_temperature_derivative` raises an error for a derivative by temperatures.
- :data:`TILE_DTYPES` are the types of logits and operands that kernels take.

N positions, V classes. ``caller`` is the name of the public function, with which error messages begin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from numbers import Real
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from nkilib.core.host.options import Group, check_reduction, numbers, options_of
from nkilib.core.rows.argmax import ARGMAX_COLUMNS_MAX
from nkilib.experimental.loss.cross_entropy.launch import (
    TEMPERATURE_MAX,
    TEMPERATURE_MIN,
    LossOptions,
    check_options,
)
from nkilib.jax.launching import check_platforms, is_known
from nkilib.jax.rows import axis_of, rows_shape
from nkilib.nki import SIMULATED, nl

# The function that messages about logits name.
CALLER: Final = "cross_entropy"

Array: TypeAlias = jax.Array | np.ndarray

# The types of logits that kernels take; tiles have the same type.
TILE_DTYPES: Final = {
    jnp.dtype(jnp.bfloat16): nl.bfloat16,
    jnp.dtype(jnp.float16): nl.float16,
    jnp.dtype(jnp.float32): nl.float32,
}

# The target of an ignored position, whatever the caller's ignore_index is.
IGNORED: Final = -100
# The target for a class that does not exist. A compiled program cannot raise errors for values: its loss is NaN.
OUT_OF_RANGE: Final = -1


def _is_class(target: Array, num_classes: int) -> Array:
    # Compared in the type of the targets, which may not hold the number of classes.
    last = min(num_classes - 1, np.iinfo(target.dtype).max)
    return (target >= 0) & (target <= target.dtype.type(last))


def _is(target: Array, value: int) -> Array:
    info = np.iinfo(target.dtype)
    if not info.min <= value <= info.max:
        return target != target  # nowhere
    return target == target.dtype.type(value)


def class_indices(target: Array, ignore_index: int, num_classes: int) -> Array:
    """Return targets as int32: a class, ``IGNORED`` or ``OUT_OF_RANGE``. A numpy array gives a numpy array.

    A plain cast to int32 would turn a target of 2^32 + 3 into class 3.

    Args:
        target: class indices of any shape and integer type.
        ignore_index: the caller's index of ignored positions, any integer.
        num_classes: V.
    """
    of = np if isinstance(target, np.ndarray) else jnp
    is_class = _is_class(target, num_classes)
    kept = of.where(is_class, of.where(is_class, target, 0).astype(np.int32), np.int32(OUT_OF_RANGE))
    return of.where(_is(target, ignore_index), np.int32(IGNORED), kept)


def first_out_of_range(target: Array, ignore_index: int, num_classes: int) -> tuple[int, ...] | None:
    """Return the index in ``target`` of the first element that is neither a class nor ``ignore_index``.

    The result is None if there is no such element. The values of ``target`` must be readable.
    """
    values = np.asarray(target)
    outside = ~(_is_class(values, num_classes) | _is(values, ignore_index))
    if not outside.any():
        return None
    return tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(outside)))[: values.ndim]


def narrowed(target: Array, ignore_index: int, classes: int) -> tuple[Array, bool]:
    """Return ``target``, and whether it is a numpy array; a numpy array is first converted by :func:`class_indices`.

    JAX would convert a numpy array of 64-bit integers to 32 bits without a check.
    """
    if isinstance(target, np.ndarray):
        return class_indices(target, ignore_index, classes), True
    return target, False


def python_numbers(caller: str, function: Callable[..., Any], group: type[Group], keywords: Mapping[str, Any]) -> Group:
    """Return options, which are compiled into a kernel, as Python numbers in an instance of ``group``.

    Args:
        caller: the name that errors begin with.
        function: the function that the options were passed to.
        group: the dataclass of the options.
        keywords: the options by name, as numbers of Python or numpy; missing options get their default.

    Raises:
        TypeError: an option is unknown, has a value of another type, or is an array of JAX.
    """
    for option in options_of(group):
        if isinstance(keywords.get(option.name), jax.Array):
            raise TypeError(
                f"{caller}: {option.name} must be a Python number, which is compiled into the kernel, got an array of "
                f"JAX; pass {option.type.__name__}(...) of it, and where it is an argument of a function under "
                f"jax.jit, name it in static_argnames"
            )
    return numbers(caller, function, group, keywords)


def checked_options(caller: str, function: Callable[..., Any], **keywords: Any) -> LossOptions:
    """Return the options of the loss, checked and converted to Python numbers.

    Args:
        caller: the name that errors begin with.
        function: the function that the options were passed to.
        keywords: the options by name; missing options get their default.

    Raises:
        TypeError: an option is unknown, is not a number (for ``ignore_index``, not an integer), or is an array of JAX.
        ValueError: a value is out of range.
    """
    options = python_numbers(caller, function, LossOptions, keywords)
    try:
        check_options(caller, options)
    except AssertionError as error:
        raise ValueError(str(error)) from None
    return options


def check_weight(caller: str, weight: Array, classes: int) -> None:
    """Check that ``weight`` is a floating array with one number for each class.

    Raises:
        TypeError: ``weight`` is not floating.
        ValueError: the shape is not [V].
    """
    if weight.shape != (classes,):
        raise ValueError(f"{caller}: weight must have a number for each class, shape {(classes,)}, got {weight.shape}")
    if not jnp.issubdtype(weight.dtype, jnp.floating):
        raise TypeError(f"{caller}: weight must be floating, got {weight.dtype}; pass weight.astype(jnp.float32)")


def check_normalizer(caller: str, normalizer: Any, reduction: str) -> None:
    """Check that ``normalizer`` can replace the divisor of a mean.

    Raises:
        TypeError: ``normalizer`` is neither a number nor an array, or is complex.
        ValueError: ``reduction`` is not a mean; ``normalizer`` has dimensions.
    """
    if normalizer is None:
        return
    if isinstance(normalizer, bool) or not isinstance(normalizer, Array | np.generic | Real):
        raise TypeError(
            f"{caller}: normalizer must be a number or an array without dimensions, got {type(normalizer).__name__}"
        )
    if reduction != "mean":
        raise ValueError(
            f"{caller}: normalizer replaces the divisor of a mean, got reduction={reduction!r}; divide the loss "
            f"yourself"
        )
    if not isinstance(normalizer, Real) and normalizer.shape != ():
        raise ValueError(f"{caller}: normalizer must have no dimensions, got shape {normalizer.shape}; sum it up")
    if jnp.iscomplexobj(normalizer):
        raise TypeError(f"{caller}: normalizer must be real, got a complex number; pass its real part")


def _check_logits(input: Array, axis: Any) -> None:
    if input.dtype not in TILE_DTYPES:
        raise TypeError(
            f"{CALLER}: the kernels take logits in bfloat16, float16 or float32, got {input.dtype}; pass "
            f"input.astype(jnp.float32)"
        )
    if input.ndim == 0:
        raise ValueError(f"{CALLER}: input must have an axis of classes, got shape (); pass [V] or [..., V]")
    if type(axis) is not int or not -input.ndim <= axis < input.ndim:
        raise ValueError(
            f"{CALLER}: axis must be an integer from {-input.ndim} to {input.ndim - 1}, that of the classes in input "
            f"of shape {input.shape}, got {axis!r}"
        )
    if input.shape[axis] == 0:
        raise ValueError(f"{CALLER}: input must have at least one class along axis {axis}, got shape {input.shape}")


def _check_probabilities(target: Array, options: LossOptions) -> None:
    if not jnp.issubdtype(target.dtype, jnp.floating):
        raise TypeError(
            f"{CALLER}: target of the shape of input is class probabilities, which must be floating, got "
            f"{target.dtype}; class indices have the shape of input without the classes"
        )
    if options.ignore_index >= 0:
        raise ValueError(
            f"{CALLER}: ignore_index is not for class probabilities, got {options.ignore_index}; leave it out, and "
            f"give positions that do not count a row of zeros"
        )


def _check_indices(input: Array, target: Array, axis: int) -> None:
    expected = rows_shape(input.shape, axis)
    if target.shape != expected:
        fitting = [at for at in range(input.ndim) if rows_shape(input.shape, at) == target.shape]
        remedy = f"; the classes seem to be along another axis: pass axis={fitting[0]}" if fitting else ""
        raise ValueError(
            f"{CALLER}: class indices must have the shape of input, {input.shape}, without axis {axis}, {expected}, "
            f"got {target.shape}{remedy}"
        )
    if not jnp.issubdtype(target.dtype, jnp.integer):
        others = f"; class probabilities have the shape of input, {input.shape}"
        raise TypeError(
            f"{CALLER}: class indices must be integers, got {target.dtype} for labels of shape {target.shape}; cast "
            f"them, as with .astype(jnp.int32){others if jnp.issubdtype(target.dtype, jnp.floating) else ''}"
        )


def check_arguments(
    input: Any, target: Any, weight: Any, options: LossOptions, reduction: Any, normalizer: Any, axis: Any
) -> None:
    """Check the arguments of ``cross_entropy`` except the values of arrays.

    Raises:
        TypeError: an argument is not an array, or has a type that the kernels do not take.
        ValueError: shapes do not fit; ``reduction`` is unknown; ``axis`` does not exist; ``normalizer`` is given
            without a mean.
        NotImplementedError: an array is on a platform on which the kernels do not run.
    """
    for name, value in (("input", input), ("target", target), ("weight", weight)):
        if not (isinstance(value, Array) or (name == "weight" and value is None)):
            raise TypeError(
                f"{CALLER}: {name} must be an array of JAX or numpy, got {type(value).__name__}; pass jnp.asarray(...)"
            )
    check_reduction(CALLER, reduction)
    check_platforms(CALLER, {"input": input, "target": target, "weight": weight})
    _check_logits(input, axis)
    if target.shape == input.shape:
        _check_probabilities(target, options)
    else:
        _check_indices(input, target, axis)
    if weight is not None:
        check_weight(CALLER, weight, input.shape[axis_of(input.shape, axis)])
    check_normalizer(CALLER, normalizer, reduction)


def has_readable_values(array: Array) -> bool:
    """Return whether the values of an array can be read without waiting for a device.

    This holds for numpy arrays, and for arrays on the CPU that are not traced.
    """
    return isinstance(array, np.ndarray) or (SIMULATED and is_known(array) and array.is_fully_addressable)


def check_range(caller: str, target: Array, ignore_index: int, num_classes: int) -> None:
    """Check that every target is a class or ``ignore_index``, if the values can be read without waiting for a device.

    Raises:
        IndexError: a target is neither; the message names the first such position.
    """
    if not has_readable_values(target):
        return
    position = first_out_of_range(target, ignore_index, num_classes)
    if position is not None:
        raise IndexError(
            f"{caller}: target at position {list(position)} must be a class from 0 to {num_classes - 1} or "
            f"ignore_index, {ignore_index}, got {int(np.asarray(target)[position])}"
        )


def check_outputs(caller: str, num_classes: int) -> None:
    """Check that the number of classes allows ``return_outputs``: the kernel computes the argmax in float32.

    Raises:
        ValueError: there are more than 2^24 classes.
    """
    if num_classes > ARGMAX_COLUMNS_MAX:
        raise ValueError(
            f"{caller}: return_outputs is for at most {ARGMAX_COLUMNS_MAX} classes, got {num_classes}; leave it off"
        )


def temperature_array(temperature: Any) -> Array | None:
    """Return ``temperature`` if it is an array that the kernels read; None if it is a number.

    A JAX array is read by the kernels, and so is a numpy array with at least one dimension.
    """
    is_array = isinstance(temperature, jax.Array) or (isinstance(temperature, np.ndarray) and temperature.ndim > 0)
    return temperature if is_array else None


def _fits(shape: tuple[int, ...], positions: tuple[int, ...]) -> bool:
    try:
        return prod(shape) == 1 or np.broadcast_shapes(shape, positions) == positions
    except ValueError:
        return False


def _check_temperature_shape(caller: str, shape: tuple[int, ...], positions: tuple[int, ...]) -> None:
    if _fits(shape, positions):
        return
    leading = (*shape, *(1 for _ in positions[len(shape) :]))
    remedy = f"; pass temperature.reshape{leading}" if _fits(leading, positions) else ""
    raise ValueError(
        f"{caller}: temperature must have one element, or a shape that broadcasts to that of the positions, "
        f"{positions}, got {shape}{remedy}"
    )


def _check_temperature_values(caller: str, temperatures: Array) -> None:
    # In float32, as the kernels compare them: 1e-6 is none of its numbers.
    with np.errstate(over="ignore"):
        values = np.asarray(temperatures).astype(np.float32)
    is_within = (values >= np.float32(TEMPERATURE_MIN)) & (values <= np.float32(TEMPERATURE_MAX))
    if is_within.all():
        return
    position = tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(~is_within)))[: values.ndim]
    raise ValueError(
        f"{caller}: temperature at {list(position)} must be from {TEMPERATURE_MIN} to {TEMPERATURE_MAX}, got "
        f"{np.asarray(temperatures)[position]}; pass 1.0 for none, also at positions that are ignored"
    )


def check_temperatures(caller: str, temperatures: Array | None, positions: tuple[int, ...]) -> None:
    """Check an array of temperatures, and its values if they can be read without waiting for a device.

    Args:
        caller: the name that errors begin with.
        temperatures: the array; None is accepted.
        positions: the shape of the positions.

    Raises:
        TypeError: the array is not floating.
        ValueError: the shape does not fit, or a value is NaN or out of range.
        NotImplementedError: the array is on a platform on which the kernels do not run.
    """
    if temperatures is None:
        return
    check_platforms(caller, {"temperature": temperatures})
    if not jnp.issubdtype(temperatures.dtype, jnp.floating):
        raise TypeError(
            f"{caller}: temperature must be a number or a floating array, got an array of {temperatures.dtype}; pass "
            f"temperature.astype(jnp.float32)"
        )
    _check_temperature_shape(caller, temperatures.shape, positions)
    if has_readable_values(temperatures):
        _check_temperature_values(caller, temperatures)


def temperature_rows(temperatures: jax.Array | None, positions: tuple[int, ...]) -> jax.Array | None:
    """Return the temperatures of all positions, [N] float32; None if ``temperatures`` is None.

    A single element is repeated, so that under ``jax.vmap`` one launch can handle examples with different temperatures.

    Args:
        temperatures: a checked array, or None.
        positions: the shape of the positions.
    """
    if temperatures is None:
        return None
    element = temperatures.reshape(()) if temperatures.size == 1 else temperatures
    return jnp.broadcast_to(element.astype(jnp.float32), positions).reshape(-1)


def refuse_temperature_derivative(caller: str, temperatures: Any) -> None:
    """Raise an error if a derivative with respect to temperatures is requested.

    Args:
        caller: the name that errors begin with.
        temperatures: the argument of the forward of a ``jax.custom_vjp`` with ``symbolic_zeros``, or None.

    Raises:
        NotImplementedError: a derivative is requested.
    """
    if temperatures is not None and temperatures.perturbed:
        raise NotImplementedError(
            f"{caller}: temperature is differentiated by, and there is no derivative by temperatures; pass "
            f"jax.lax.stop_gradient(temperature)"
        )
