# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Validation of the operands of output-layer kernels, with messages that name the arguments of the kernel.

:func:`validate_operands` checks input and weight, :func:`validate_bias` the bias, :func:`validate_wanted_gradients` the
requested gradients; :func:`validated_blocks` checks a tiling. A kernel of two models has arguments with prefixes, such
as ``student_input_hbm``. dW is the gradient of the weight.
"""

from __future__ import annotations

from nkilib.core.host.options import is_integer
from nkilib.core.rows.checks import require, require_flag
from nkilib.experimental.loss.linear.launch import (
    CLASSES_MAX,
    FEATURES_MAX,
    FEATURES_MIN,
    POSITIONS_MAX,
    WEIGHT_LAYOUTS,
    LinearOperands,
    LinearTiling,
    WantedGradients,
)
from nkilib.nki import nl

_TYPES = (nl.bfloat16, nl.float32, nl.float16)


def _validate_input(function: str, prefix: str, input_hbm: nl.NkiTensor) -> None:
    shape, who = input_hbm.shape, f"{function}: {prefix}input_hbm"
    require(
        len(shape) == 2,
        f"{who} must be 2-D [num_positions, num_features], got shape {shape}; "
        f"reshape [batch, sequence, num_features] to [batch * sequence, num_features]",
    )
    require(
        0 < shape[0] <= POSITIONS_MAX,
        f"{who} must have 1 to {POSITIONS_MAX} rows, got shape {shape}; "
        f"launch nothing for no position, and several times for more",
    )
    require(
        FEATURES_MIN <= shape[1] <= FEATURES_MAX,
        f"{who} must have {FEATURES_MIN} to {FEATURES_MAX} features, got shape {shape}; "
        f"pad fewer with zeros, here and in {prefix}weight_hbm",
    )
    require(
        input_hbm.dtype in _TYPES,
        f"{who} must be bfloat16, float32 or float16, got {input_hbm.dtype}; cast it and {prefix}weight_hbm",
    )


def _validate_compute_dtype(operands: LinearOperands, prefix: str) -> None:
    require(
        operands.compute_dtype is None or operands.compute_dtype in _TYPES,
        f"{operands.function}: compute_dtype must be bfloat16, float32, float16 or None, got {operands.compute_dtype}; "
        f"None takes the type of {prefix}input_hbm",
    )


def _validate_weight(operands: LinearOperands, prefix: str) -> None:
    function, features = operands.function, operands.num_features
    who, input_name = f"{function}: {prefix}weight_hbm", f"{prefix}input_hbm"
    layout_name = f"{prefix}weight_layout"
    layouts = " or ".join(f'"{layout}"' for layout in WEIGHT_LAYOUTS)
    require(
        operands.weight_layout in WEIGHT_LAYOUTS,
        f"{function}: {layout_name} must be {layouts}, got {operands.weight_layout!r}; "
        f'"vd" is [vocab_size, num_features], as the weight of torch.nn.Linear',
    )
    shape = operands.weight_hbm.shape
    layout = "[vocab_size, num_features]" if operands.has_classes_first else "[num_features, vocab_size]"
    require(
        len(shape) == 2,
        f"{who} must be 2-D {layout} by {layout_name}={operands.weight_layout!r}, got shape {shape}; reshape it",
    )
    weight_features = shape[1] if operands.has_classes_first else shape[0]
    other = WEIGHT_LAYOUTS[1 if operands.has_classes_first else 0]
    require(
        weight_features == features,
        f"{who} must be {layout} with the {features} features of {input_name} by "
        f"{layout_name}={operands.weight_layout!r}, got shape {shape}; pass {layout_name}={other!r} for its transpose",
    )
    require(
        0 < operands.vocab_size <= CLASSES_MAX,
        f"{who} must have 1 to {CLASSES_MAX} classes, which are counted in float32, "
        f"got shape {shape}; there is no launch for a larger vocabulary",
    )
    if operands.compute_dtype is None:
        require(
            operands.weight_hbm.dtype == operands.dtype,
            f"{who} must have the dtype of {input_name}, {operands.dtype}, got {operands.weight_hbm.dtype}; "
            f"cast one of them, or pass the compute_dtype that both are rounded to",
        )
    require(
        operands.weight_hbm.dtype in _TYPES,
        f"{who} must be bfloat16, float32 or float16, got {operands.weight_hbm.dtype}; cast it",
    )


def validate_operands(operands: LinearOperands, prefix: str = "") -> None:
    """Check that input and weight fit each other, and that the kernels accept them.

    Args:
        operands: the operands of a kernel.
        prefix: the prefix of the kernel's argument names, such as ``"student_"``, for messages.

    Raises:
        AssertionError: if the operands are not accepted; the message names function, requirement, value and remedy.
    """
    _validate_input(operands.function, prefix, operands.input_hbm)
    _validate_compute_dtype(operands, prefix)
    _validate_weight(operands, prefix)


def validated_blocks(
    function: str,
    chosen: LinearTiling,
    position_block: int | None,
    class_block: int | None,
    chooser: str,
    most_classes: int | None = None,
) -> LinearTiling:
    """Return the tiling with the requested sizes, or the default where None is requested.

    Args:
        function: the name of the function in error messages.
        chosen: the tiling that is chosen by default.
        position_block, class_block: the requested sizes, or None.
        chooser: the name of the function that chose the default, for error messages.
        most_classes: the largest number of classes of a block; None for no limit.

    Raises:
        AssertionError: if a size is not accepted; the message names function, requirement, value and remedy.
    """
    tiling = LinearTiling(
        chosen.position_block if position_block is None else position_block,
        chosen.class_block if class_block is None else class_block,
    )
    tile, remedy = nl.tile_size.pmax, f"None takes the value of {chooser}"
    for name, size in (("position_block", tiling.position_block), ("class_block", tiling.class_block)):
        require(
            is_integer(size) and size > 0 and size % tile == 0,
            f"{function}: {name} must be a positive multiple of {tile} or None, got {size}; {remedy}",
        )
    require(
        most_classes is None or tiling.class_block <= most_classes,
        f"{function}: class_block must be at most {most_classes}, what a bank of PSUM holds, "
        f"got {tiling.class_block}; {remedy}",
    )
    return tiling


def validate_wanted_gradients(
    operands: LinearOperands,
    wanted: WantedGradients,
    weight_sum_hbm: nl.NkiTensor | None = None,
    prefix: str = "",
) -> None:
    """Check that the requested gradients exist, and that dW can be added to the caller's sum.

    Args:
        operands: the operands whose gradients are wanted.
        wanted: the wanted gradients.
        weight_sum_hbm: the caller's float32 sum, to which dW is added; None for none.
        prefix: the prefix of the kernel's argument names, for messages.

    Raises:
        AssertionError: if a wanted gradient does not exist, if none is wanted, or if dW cannot be added to the sum; the
            message names function, requirement, value and remedy.
    """
    function = operands.function
    require_flag(function, "grad_input_wanted", wanted.input)
    require_flag(function, "grad_weight_wanted", wanted.weight)
    require_flag(function, "grad_bias_wanted", wanted.bias)
    require_flag(function, "grad_input_float32", wanted.input_float32)
    require(
        not wanted.bias or operands.bias_hbm is not None,
        f"{function}: grad_bias_wanted must be False or None without {prefix}bias_hbm, got True; pass the bias",
    )
    require(
        wanted.input or wanted.weight or wanted.bias,
        f"{function}: at least one of grad_input_wanted, grad_weight_wanted and grad_bias_wanted must be True, "
        f"got none; launch nothing where no gradient is wanted",
    )
    if weight_sum_hbm is None:
        return
    require(
        wanted.weight,
        f"{function}: grad_weight_sum_hbm must be None without grad_weight_wanted, got a tensor; pass one of them",
    )
    require(
        tuple(weight_sum_hbm.shape) == tuple(operands.weight_hbm.shape),
        f"{function}: grad_weight_sum_hbm must have the shape of {prefix}weight_hbm, {operands.weight_hbm.shape}, "
        f"got {weight_sum_hbm.shape}; keep the sum in the layout of the weight",
    )
    require(
        weight_sum_hbm.dtype == nl.float32,
        f"{function}: grad_weight_sum_hbm must be float32, got {weight_sum_hbm.dtype}; keep the sum in float32",
    )


def validate_num_classes(function: str, num_classes: int | None) -> None:
    """Check that the number of classes of all shards is at most 2^24, up to which float32 counts them exactly.

    Raises:
        AssertionError: if there are more; the message names function, requirement, value and remedy.
    """
    require(
        num_classes is None or (is_integer(num_classes) and num_classes <= CLASSES_MAX),
        f"{function}: num_classes must be an integer of at most {CLASSES_MAX}, which are counted in float32, or None, "
        f"got {num_classes}; there is no launch for a larger vocabulary",
    )


def validate_bias(operands: LinearOperands, prefix: str = "") -> None:
    """Check that the bias, if there is one, has one value for each class and an accepted dtype.

    Args:
        operands: the operands of a kernel, with or without a bias.
        prefix: the prefix of the kernel's argument names, for messages.

    Raises:
        AssertionError: if the bias is not accepted; the message names function, requirement, value and remedy.
    """
    bias_hbm = operands.bias_hbm
    if bias_hbm is None:
        return
    function, vocab_size = operands.function, operands.vocab_size
    require(
        tuple(bias_hbm.shape) == (vocab_size,),
        f"{function}: {prefix}bias_hbm must have shape ({vocab_size},), one value for each class of "
        f"{prefix}weight_hbm, got {bias_hbm.shape}; flatten it as the classes",
    )
    accepted: tuple[nl.DType, ...] = (nl.float32, operands.dtype)
    types = "float32" if operands.dtype == nl.float32 else f"float32 or {operands.dtype}, as {prefix}weight_hbm is"
    if operands.compute_dtype is not None:
        accepted, types = _TYPES, "bfloat16, float32 or float16"
    require(
        bias_hbm.dtype in accepted,
        f"{function}: {prefix}bias_hbm must be {types}, got {bias_hbm.dtype}; cast it to float32",
    )
