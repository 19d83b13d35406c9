"""What the kernels accept. Everything else is refused here, before anything is written."""

from __future__ import annotations

import math

from nkilib.core.rows.checks import require, require_flag, require_indirect_dma, require_vector
from nkilib.experimental.loss.cross_entropy.options import LossOptions, Options, Wanted
from nkilib.experimental.loss.cross_entropy.upstream import PositionUpstream
from nkilib.experimental.loss.cross_entropy.validation import (
    validate_class_targets,
    validate_recipe,
    validate_upstream,
    validate_wanted,
    validated_classes,
)
from nkilib.experimental.loss.linear.launch import (
    CLASSES_MAX,
    FEATURES_MAX,
    FEATURES_MIN,
    POSITIONS_MAX,
    WEIGHT_LAYOUTS,
    WantedGradients,
    check_logit_scale,
)
from nkilib.experimental.loss.linear.sizes import LinearTiling
from nkilib.experimental.loss.linear_cross_entropy.forward_needs import ForwardNeeds
from nkilib.experimental.loss.linear_cross_entropy.host.memory import SCRATCH_BYTES
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import FORWARD, choose_linear_tiling
from nkilib.experimental.loss.linear_cross_entropy.options import LinearLaunch, scaled_recipe
from nkilib.nki import nisa, nl

_LIKE = "the rows of the input"
_TYPES = (nl.bfloat16, nl.float32, nl.float16)


def validated_linear_options(
    launch: LinearLaunch,
    recipe: LossOptions,
    logit_scale: float,
    first_class: int,
    num_classes: int | None,
    wanted: Wanted | None = None,
) -> Options:
    """The options of a kernel, whose recipe includes the scale of the logits.

    Raises:
        AssertionError: an array, an option or a result is not accepted; with function, requirement, value and remedy.
    """
    function = launch.function
    validate_linear_arrays(launch)
    _validate_num_classes(function, num_classes)
    classes = validated_classes(function, launch.vocab_size, "the classes of weight_hbm", first_class, num_classes)
    wanted = wanted or Wanted()
    validate_recipe(function, recipe)
    check_logit_scale(function, logit_scale)
    recipe = scaled_recipe(recipe, logit_scale)
    validate_wanted(function, wanted, classes)
    return Options(classes, is_weighted=launch.class_weight_hbm is not None, recipe=recipe, wanted=wanted)


def validate_linear_arrays(launch: LinearLaunch) -> None:
    """Refuse tensors that do not fit each other, or that no kernel takes.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    function = launch.function
    require_indirect_dma(function)
    _validate_input(function, launch.input_hbm)
    _validate_compute_dtype(launch)
    _validate_weight(launch)
    if launch.ids == 1:
        validate_class_targets(function, launch.targets_hbm, launch.num_positions, "input_hbm", _LIKE)
    if launch.bias_hbm is not None:
        _validate_bias(launch, launch.bias_hbm)
    if launch.class_weight_hbm is not None:
        require_vector(function, "class_weight_hbm", launch.class_weight_hbm, launch.vocab_size, "the classes")


def validate_linear_upstream(launch: LinearLaunch, options: Options, upstream: PositionUpstream) -> None:
    """Refuse upstream gradients and statistics that do not fit each other, the positions or the options.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    validate_upstream(launch.function, launch.num_positions, options, upstream, _LIKE, requires_loss=False)


def validate_wanted_gradients(
    launch: LinearLaunch, wanted: WantedGradients, weight_sum_hbm: nl.NkiTensor | None = None
) -> None:
    """Refuse gradients that are not there to take, and a sum that dW cannot be added to.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    function = launch.function
    require_flag(function, "grad_input_wanted", wanted.input)
    require_flag(function, "grad_weight_wanted", wanted.weight)
    require_flag(function, "grad_bias_wanted", wanted.bias)
    require_flag(function, "grad_input_float32", wanted.input_float32)
    require(
        not wanted.bias or launch.bias_hbm is not None,
        f"{function}: grad_bias_wanted must be False or None without bias_hbm, got True; pass the bias",
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
        tuple(weight_sum_hbm.shape) == tuple(launch.weight_hbm.shape),
        f"{function}: grad_weight_sum_hbm must have the shape of weight_hbm, {launch.weight_hbm.shape}, "
        f"got {weight_sum_hbm.shape}; keep the sum in the layout of the weight",
    )
    require(
        weight_sum_hbm.dtype == nl.float32,
        f"{function}: grad_weight_sum_hbm must be float32, got {weight_sum_hbm.dtype}; keep the sum in float32",
    )


def validated_grad_scale(
    function: str, grad_scale: float | None, grad_scale_hbm: nl.NkiTensor | None
) -> float | nl.NkiTensor:
    """What every gradient is multiplied with: a number of the host, or a tensor [1] of the device.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    remedy = "pass grad_scale=1 / count for the mean, 1.0 for the sum"
    require(
        grad_scale is None or grad_scale_hbm is None,
        f"{function}: grad_scale and grad_scale_hbm must not both be given, got {grad_scale} and a tensor; {remedy}",
    )
    if grad_scale_hbm is not None:
        require(
            tuple(grad_scale_hbm.shape) == (1,),
            f"{function}: grad_scale_hbm must have shape (1,), got {grad_scale_hbm.shape}; it is one for all positions",
        )
        require(
            grad_scale_hbm.dtype == nl.float32,
            f"{function}: grad_scale_hbm must be float32, got {grad_scale_hbm.dtype}; cast it to float32",
        )
        return grad_scale_hbm
    if isinstance(grad_scale, bool) or not isinstance(grad_scale, float | int) or not math.isfinite(grad_scale):
        raise AssertionError(f"{function}: grad_scale must be a finite number, got {grad_scale}; {remedy}")
    return float(grad_scale)


def validate_scratch_bytes(launch: LinearLaunch, scratch_bytes: int) -> None:
    """Refuse a scratch that does not hold the logits of one tile of positions.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    positions = min(launch.num_positions, nl.tile_size.pmax)
    least = positions * launch.vocab_size * 4
    require(
        isinstance(scratch_bytes, int) and not isinstance(scratch_bytes, bool) and scratch_bytes >= least,
        f"{launch.function}: scratch_bytes must be an integer of at least {least}, the float32 logits of "
        f"{positions} positions, got {scratch_bytes}; pass more, or launch forward and backward apart",
    )


def validated_tiling(
    launch: LinearLaunch,
    extended: bool,
    direction: str,
    position_block: int | None,
    class_block: int | None,
    scratch_bytes: int = SCRATCH_BYTES,
    needs: ForwardNeeds | None = None,
) -> LinearTiling:
    """The tiling that is asked for; None in it stands for what ``choose_linear_tiling`` says.

    Args:
        launch: of a kernel.
        extended, direction, scratch_bytes: as ``choose_linear_tiling`` takes them.
        position_block, class_block: that are asked for.
        needs: of the forward.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    chosen = choose_linear_tiling(
        launch.num_positions,
        launch.num_features,
        launch.vocab_size,
        launch.dtype,
        direction,
        cores=nl.num_programs(),
        target="trn2" if nisa.get_nc_version() == nisa.nc_version.gen3 else "trn3",
        weight_layout=launch.weight_layout,
        extended=extended,
        scratch_bytes=scratch_bytes,
        input_dtype=launch.input_hbm.dtype,
        weight_dtype=launch.weight_hbm.dtype,
        forward_needs=needs,
        ids=launch.ids,
    )
    tiling = LinearTiling(
        chosen.position_block if position_block is None else position_block,
        chosen.class_block if class_block is None else class_block,
    )
    tile, remedy = nl.tile_size.pmax, "None takes what choose_linear_tiling says"
    for name, size in (("position_block", tiling.position_block), ("class_block", tiling.class_block)):
        require(
            isinstance(size, int) and size > 0 and size % tile == 0,
            f"{launch.function}: {name} must be a positive multiple of {tile} or None, got {size}; {remedy}",
        )
    require(
        direction != FORWARD or tiling.class_block <= nl.tile_size.psum_bank_fmax,
        f"{launch.function}: class_block must be at most {nl.tile_size.psum_bank_fmax}, what a bank of PSUM holds, "
        f"got {tiling.class_block}; {remedy}",
    )
    return tiling


def _validate_input(function: str, input_hbm: nl.NkiTensor) -> None:
    """[N, D], of sizes that fit the chip."""
    shape = input_hbm.shape
    require(
        len(shape) == 2,
        f"{function}: input_hbm must be 2-D [num_positions, num_features], got shape {shape}; "
        f"reshape [batch, sequence, num_features] to [batch * sequence, num_features]",
    )
    require(
        0 < shape[0] <= POSITIONS_MAX,
        f"{function}: input_hbm must have 1 to {POSITIONS_MAX} rows, got shape {shape}; "
        f"launch nothing for no position, and several times for more",
    )
    require(
        FEATURES_MIN <= shape[1] <= FEATURES_MAX,
        f"{function}: input_hbm must have {FEATURES_MIN} to {FEATURES_MAX} features, got shape {shape}; "
        f"pad fewer with zeros, here and in weight_hbm",
    )
    require(
        input_hbm.dtype in _TYPES,
        f"{function}: input_hbm must be bfloat16, float32 or float16, got {input_hbm.dtype}; cast it and weight_hbm",
    )


def _validate_compute_dtype(launch: LinearLaunch) -> None:
    """A type that products have."""
    require(
        launch.compute_dtype is None or launch.compute_dtype in _TYPES,
        f"{launch.function}: compute_dtype must be bfloat16, float32, float16 or None, got {launch.compute_dtype}; "
        f"None takes the type of input_hbm",
    )


def _validate_weight(launch: LinearLaunch) -> None:
    """As many features as the input, and its dtype."""
    function, features = launch.function, launch.num_features
    layouts = " or ".join(f'"{layout}"' for layout in WEIGHT_LAYOUTS)
    require(
        launch.weight_layout in WEIGHT_LAYOUTS,
        f"{function}: weight_layout must be {layouts}, got {launch.weight_layout!r}; "
        f'"vd" is [vocab_size, num_features], as the weight of torch.nn.Linear',
    )
    shape = launch.weight_hbm.shape
    layout = "[vocab_size, num_features]" if launch.has_classes_first else "[num_features, vocab_size]"
    require(
        len(shape) == 2,
        f"{function}: weight_hbm must be 2-D {layout} by weight_layout={launch.weight_layout!r}, got shape {shape}; "
        f"reshape it",
    )
    found = shape[1] if launch.has_classes_first else shape[0]
    other = WEIGHT_LAYOUTS[1 if launch.has_classes_first else 0]
    require(
        found == features,
        f"{function}: weight_hbm must be {layout} with the {features} features of input_hbm by "
        f"weight_layout={launch.weight_layout!r}, got shape {shape}; pass weight_layout={other!r} for its transpose",
    )
    require(
        0 < launch.vocab_size <= CLASSES_MAX,
        f"{function}: weight_hbm must have 1 to {CLASSES_MAX} classes, which are counted in float32, "
        f"got shape {shape}; there is no launch for a larger vocabulary",
    )
    if launch.compute_dtype is None:
        require(
            launch.weight_hbm.dtype == launch.dtype,
            f"{function}: weight_hbm must have the dtype of input_hbm, {launch.dtype}, got {launch.weight_hbm.dtype}; "
            f"cast one of them, or pass the compute_dtype that both are rounded to",
        )
    require(
        launch.weight_hbm.dtype in _TYPES,
        f"{function}: weight_hbm must be bfloat16, float32 or float16, got {launch.weight_hbm.dtype}; cast it",
    )


def _validate_num_classes(function: str, num_classes: int | None) -> None:
    """Targets count over all shards, and float32 has every integer up to there."""
    require(
        num_classes is None or (isinstance(num_classes, int) and num_classes <= CLASSES_MAX),
        f"{function}: num_classes must be an integer of at most {CLASSES_MAX}, which are counted in float32, or None, "
        f"got {num_classes}; there is no launch for a larger vocabulary",
    )


def _validate_bias(launch: LinearLaunch, bias_hbm: nl.NkiTensor) -> None:
    """A number for each class."""
    function, vocab_size = launch.function, launch.vocab_size
    require(
        tuple(bias_hbm.shape) == (vocab_size,),
        f"{function}: bias_hbm must have shape ({vocab_size},), one value for each class of weight_hbm, "
        f"got {bias_hbm.shape}; flatten it as the classes",
    )
    accepted: tuple[nl.DType, ...] = (nl.float32, launch.dtype)
    types = "float32" if launch.dtype == nl.float32 else f"float32 or {launch.dtype}, as weight_hbm is"
    if launch.compute_dtype is not None:
        accepted, types = _TYPES, "bfloat16, float32 or float16"
    require(
        bias_hbm.dtype in accepted,
        f"{function}: bias_hbm must be {types}, got {bias_hbm.dtype}; cast it to float32",
    )
