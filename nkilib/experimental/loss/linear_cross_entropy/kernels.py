# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of linear cross-entropy: the loss of an output layer ``X W^T + b`` and its gradients, without logits in
HBM.

:func:`linear_cross_entropy_forward` multiplies tiles of X and W, and updates the running statistics of the positions
with each tile of logits. :func:`linear_cross_entropy_backward` recomputes the tiles of logits, computes the gradient of
each tile, and multiplies this gradient with W and X. The cores of a launch split the vocabulary.
:func:`linear_cross_entropy_forward_backward` computes loss and gradients in a single launch, and keeps the logits of a
block of positions in HBM in between.
"""

from __future__ import annotations

from nkilib.core.hardware import HbmTensor
from nkilib.experimental.loss.cross_entropy.launch import LossOptions, PositionUpstream, Wanted
from nkilib.experimental.loss.cross_entropy.results import Results
from nkilib.experimental.loss.linear.launch import SCRATCH_BYTES, Gradients, WantedGradients
from nkilib.experimental.loss.linear.validation import validate_wanted_gradients
from nkilib.experimental.loss.linear_cross_entropy.backward import backward_of_core
from nkilib.experimental.loss.linear_cross_entropy.forward import forward_of_core
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import BACKWARD, FORWARD, FORWARD_BACKWARD
from nkilib.experimental.loss.linear_cross_entropy.launch import (
    LinearLaunch,
    forward_needs,
    has_options,
    has_rest,
    without_loss,
)
from nkilib.experimental.loss.linear_cross_entropy.one_launch import one_launch
from nkilib.experimental.loss.linear_cross_entropy.validation import (
    validate_linear_upstream,
    validate_scratch_bytes,
    validated_grad_scale,
    validated_linear_options,
    validated_tiling,
)
from nkilib.nki import nl


def linear_cross_entropy_forward(
    input_hbm: HbmTensor,
    weight_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    bias_hbm: HbmTensor | None = None,
    class_weight_hbm: HbmTensor | None = None,
    *,
    weight_layout: str = "vd",
    position_block: int | None = None,
    class_block: int | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    logit_softcap: float | None = None,
    lse_square_scale: float = 0.0,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    with_target: bool = False,
    with_argmax: bool = False,
    with_entropy: bool = False,
    with_distance_sum: bool = False,
    with_log_sum: bool = False,
    with_log_sum_squares: bool = False,
    with_mean_logit: bool = False,
    first_class: int = 0,
    num_classes: int | None = None,
    compute_dtype: nl.DType | None = None,
    temperature_hbm: HbmTensor | None = None,
) -> tuple[nl.NkiTensor, ...]:
    """Compute the cross-entropy loss of every position from hidden states and output weights.

    With ``y = s (X W^T + b)`` for a logit scale s, and ``z = y / T`` for a temperature T, or ``c * tanh(y / c) / T``
    for a cap c, the results are those of ``extended_cross_entropy_forward`` for the logits z. Without options the
    kernel computes, in PyTorch terms and in float32 throughout,
    ``F.cross_entropy(F.linear(input, weight, bias), targets, reduction="none")``. No logits reach HBM: beyond inputs
    and outputs the kernel allocates no HBM. Launch it with ``linear_cross_entropy_forward[2](...)`` on a logical
    NeuronCore of two cores. Without ``[2]`` it runs on as many cores as ``NEURON_LOGICAL_NC_CONFIG`` gives, or on one.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        D: features (16 to 16,384).
        V: classes of the weight (1 to 2^24).

    Args:
        input_hbm: X, [N, D], bfloat16, float32 or float16, in HBM.
        weight_hbm: W, [V, D], or [D, V] by ``weight_layout``, in HBM. Its dtype is the dtype of X, unless
            ``compute_dtype`` is given.
        targets_hbm: [N], int32, in HBM, each a class or ``ignore_index``. The loss at any other value is undefined, but
            no memory out of bounds is touched for it.
        bias_hbm: b, [V], float32 or the dtype of W, or any of the three dtypes if ``compute_dtype`` is given, in HBM. A
            bias of -inf masks a class. It is added to the products in float32, and never rounded.
        class_weight_hbm: [V], float32, in HBM: the class weights w.
        weight_layout: ``"vd"``, like the weight of ``torch.nn.Linear``, or ``"dv"``, its transpose.
        position_block: the number of positions whose X is on chip at a time, a multiple of 128. None takes the value of
            ``choose_linear_tiling``.
        class_block: the number of classes that a core works on at a time, a multiple of 128, at most 512. None takes
            the value of ``choose_linear_tiling``.
        ignore_index: the target of ignored positions, a 32-bit integer.
        label_smoothing: e, in [0, 1]; arXiv 1512.00567.
        logit_softcap: c, from 1e-30 to 1e30, or None; arXiv 2408.00118. Where a logit is -inf, z is -inf.
        lse_square_scale: the factor of the squared log-sum-exp (z-loss), from 0 to 1e30; arXiv 2204.02311.
        temperature: T, from 1e-6 to 1e6. It divides the logits, after the cap. It is a constant of the compiled kernel:
            each new value compiles the kernel again.
        logit_scale: s, from 1e-6 to 1e6. It multiplies product and bias, before the cap. It is a constant of the
            compiled kernel, like ``temperature``.
        with_target: also return target_logit and position_weight.
        with_argmax: also return the first class with the largest z. Values of z are compared as computed, in float32.
        with_entropy: also return the entropy of the softmax.
        with_distance_sum: also return ``sum_k w[k] * (m - z[k])``, where m is the largest z and w the class weights.
        with_log_sum: also return m and ``log(sum_k exp(z[k] - m))``, which add up to lse.
        with_log_sum_squares: also return ``log(sum_k p[k]**2)`` of the softmax p. On a vocabulary shard, p is the
            softmax over the classes of that shard alone.
        with_mean_logit: also return the mean of z over the classes of W that no bias of -inf masks.
        first_class: the class of the first row of W, if W is a vocabulary shard. Targets and argmax count over all
            classes. The loss of a shard is undefined; compute it from lse, target_logit and distance_sum of all shards.
        num_classes: the number of classes of all shards, up to 2^24; None for V.
        compute_dtype: bfloat16, float16 or float32. X and W are each rounded from their own dtype to it for the
            products. None takes the dtype of X.
        temperature_hbm: [N] or [1], float32, in HBM: the temperature of each position or of all, in place of
            ``temperature``; no value compiles the kernel again. Where a temperature is not from 1e-6 to 1e6 (0,
            negative, infinite, NaN), the results of the position that depend on it are NaN. The argmax is taken before
            the temperature, which does not change the order of logits.

    Returns:
        Tuple of [N] float32 tensors in HBM: loss (nats) and lse, ``log(sum(exp(z)))``; then the requested results, in
        this order: target_logit, ``z[t]``, and position_weight, ``w[t]`` or 1, both 0 where the position is ignored or
        its class is in another shard; argmax (int32); entropy; distance_sum; maximum and log_sum; log_sum_squares;
        mean_logit.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "linear_cross_entropy_forward"
    launch = LinearLaunch(
        function,
        input_hbm,
        weight_hbm,
        bias_hbm,
        class_weight_hbm,
        weight_layout,
        compute_dtype,
        targets_hbm=targets_hbm,
        temperature_hbm=temperature_hbm,
    )
    recipe = LossOptions(ignore_index, label_smoothing, logit_softcap, lse_square_scale, temperature)
    wanted = Wanted(
        with_argmax,
        with_entropy,
        with_distance_sum,
        with_log_sum,
        with_target,
        with_log_sum_squares,
        with_mean_logit,
    )
    options = validated_linear_options(launch, recipe, logit_scale, first_class, num_classes, wanted)
    needs = forward_needs(launch, options)
    tiling = validated_tiling(launch, False, FORWARD, position_block, class_block, needs=needs)
    results = Results.of_options(launch.num_positions, options)
    forward_of_core(launch, options, tiling, results)
    return results.returned()


def linear_cross_entropy_backward(
    input_hbm: HbmTensor,
    weight_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    lse_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor | None = None,
    bias_hbm: HbmTensor | None = None,
    class_weight_hbm: HbmTensor | None = None,
    grad_lse_hbm: HbmTensor | None = None,
    grad_logprob_hbm: HbmTensor | None = None,
    *,
    weight_layout: str = "vd",
    position_block: int | None = None,
    class_block: int | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    logit_softcap: float | None = None,
    lse_square_scale: float = 0.0,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    first_class: int = 0,
    num_classes: int | None = None,
    target_weight_hbm: HbmTensor | None = None,
    weight_sum: float | None = None,
    maximum_hbm: HbmTensor | None = None,
    log_sum_hbm: HbmTensor | None = None,
    entropy_hbm: HbmTensor | None = None,
    grad_entropy_hbm: HbmTensor | None = None,
    grad_input_wanted: bool = True,
    grad_weight_wanted: bool = True,
    grad_bias_wanted: bool | None = None,
    grad_weight_sum_hbm: HbmTensor | None = None,
    grad_input_float32: bool = False,
    compute_dtype: nl.DType | None = None,
    temperature_hbm: HbmTensor | None = None,
) -> tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the forward's results with respect to input, weight and bias.

    The results are the loss, lse, the target's log-probability ``z[t] - lse`` and the entropy, each weighted by its
    upstream gradient. At least one upstream gradient must be given; one that is None costs nothing. In PyTorch, with
    the forward's results::

        results, upstream = (loss, lse, logprob, entropy), (grad_loss, grad_lse, grad_logprob, grad_entropy)
        torch.autograd.grad(results, (input, weight, bias), upstream)

    The gradient of a tile of logits is rounded once, to the dtype of the products, for dX and dW. db is summed from the
    rounded gradients; if the products are 16-bit and the bias has another dtype, from the unrounded ones. Sums are
    float32. dX and dW are rounded once, to the dtypes of X and W; db is not rounded. A float16 gradient is scaled by a
    power of two, which the device chooses from the largest upstream gradient and removes in float32. So an upstream
    gradient that is infinite or NaN makes all gradients NaN, not only those of its position.

    Beyond inputs and outputs the kernel takes 4 N D bytes of HBM per core, and at most 64 MiB more per core where the
    positions take several blocks. An X whose dtype differs from that of the products is rounded once, to a copy of N D
    elements; W is never copied. More than 65,536 positions are split: a device loop goes through parts of at most
    16,384 positions, and adds up dW and db over them in float32, which takes 4 V D bytes more unless dW is float32.
    Launch it like the forward.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        D: features (16 to 16,384).
        V: classes of the weight (1 to 2^24).

    Args:
        input_hbm, weight_hbm, targets_hbm, bias_hbm, class_weight_hbm, weight_layout, ignore_index, label_smoothing,
            logit_softcap, lse_square_scale, temperature, logit_scale, first_class, num_classes, compute_dtype,
            temperature_hbm: see ``linear_cross_entropy_forward``.
        lse_hbm: [N], float32, in HBM: lse from the forward; on a vocabulary shard, the lse over all shards.
        grad_loss_hbm: [N], float32, in HBM: the upstream gradient of each loss. Values at ignored positions have no
            effect. None means no gradient of the loss; then class weights and options of the loss have no effect.
        grad_lse_hbm, grad_logprob_hbm: [N], float32, in HBM: the upstream gradients of each lse and of each
            log-probability. At ignored positions the gradient of the log-probability has no effect, but the gradient of
            lse does.
        position_block: the number of positions whose gradients of logits are on chip at a time, a multiple of 128. None
            takes the value of ``choose_linear_tiling``.
        class_block: the number of classes that a core works on at a time, a multiple of 128. None takes the value of
            ``choose_linear_tiling``.
        target_weight_hbm: [N], float32, in HBM: ``w[t]``, the class weight of each target. A vocabulary shard needs it,
            because the target may be in another shard.
        weight_sum: a number, the sum of the class weights of all classes. None lets the kernel sum them, which is not
            possible on a vocabulary shard.
        maximum_hbm, log_sum_hbm: [N], float32, in HBM: maximum and log_sum from the forward's ``with_log_sum``; on a
            vocabulary shard, the values over all shards. If they are given, the rounding of a large lse does not affect
            the softmax.
        entropy_hbm, grad_entropy_hbm: [N], float32, in HBM: the entropy from the forward's ``with_entropy`` (on a
            vocabulary shard, the entropy over all shards), and the upstream gradient of the entropy, which also has an
            effect at ignored positions. Give both or neither. A masked class, whose logit is -inf, has a gradient of 0.
        grad_input_wanted, grad_weight_wanted: False saves the product, and the gradient is not returned.
        grad_bias_wanted: whether db is returned; None stands for True if there is a bias.
        grad_weight_sum_hbm: float32, in the shape of W, in HBM: dW is added to it in place, unrounded.
        grad_input_float32: return dX unrounded. Meant for a vocabulary shard, whose dX is one summand of the dX of all
            shards.

    Returns:
        The wanted gradients, in this order: grad_input [N, D] in the dtype of X, or float32; grad_weight in layout and
        dtype of W, or ``grad_weight_sum_hbm`` itself; grad_bias [V], float32.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "linear_cross_entropy_backward"
    launch = LinearLaunch(
        function,
        input_hbm,
        weight_hbm,
        bias_hbm,
        class_weight_hbm,
        weight_layout,
        compute_dtype,
        targets_hbm=targets_hbm,
        temperature_hbm=temperature_hbm,
    )
    recipe = LossOptions(ignore_index, label_smoothing, logit_softcap, lse_square_scale, temperature)
    upstream = PositionUpstream(
        lse_hbm,
        grad_loss_hbm,
        grad_lse_hbm,
        grad_logprob_hbm,
        target_weight_hbm,
        weight_sum,
        maximum_hbm,
        log_sum_hbm,
        entropy_hbm,
        grad_entropy_hbm,
    )
    options = validated_linear_options(launch, recipe, logit_scale, first_class, num_classes)
    if grad_loss_hbm is None:
        launch, options = without_loss(launch, options)
    validate_linear_upstream(launch, options, upstream)
    wanted = WantedGradients.of(grad_input_wanted, grad_weight_wanted, grad_bias_wanted, bias_hbm, grad_input_float32)
    validate_wanted_gradients(launch, wanted, grad_weight_sum_hbm)
    is_extended = has_options(launch, options, of_backward=True) or has_rest(launch, options, upstream)
    extended = is_extended or grad_weight_sum_hbm is not None
    tiling = validated_tiling(launch, extended, BACKWARD, position_block, class_block)
    gradients = Gradients.of_launch(launch, wanted, grad_weight_sum_hbm)
    backward_of_core(launch, options, tiling, upstream, gradients)
    return gradients.returned()


def linear_cross_entropy_forward_backward(
    input_hbm: HbmTensor,
    weight_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    bias_hbm: HbmTensor | None = None,
    class_weight_hbm: HbmTensor | None = None,
    *,
    grad_scale: float | None = None,
    grad_scale_hbm: HbmTensor | None = None,
    scratch_bytes: int = SCRATCH_BYTES,
    weight_layout: str = "vd",
    position_block: int | None = None,
    class_block: int | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    logit_softcap: float | None = None,
    lse_square_scale: float = 0.0,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    grad_input_wanted: bool = True,
    grad_weight_wanted: bool = True,
    grad_bias_wanted: bool | None = None,
    compute_dtype: nl.DType | None = None,
    temperature_hbm: HbmTensor | None = None,
) -> tuple[nl.NkiTensor, ...]:
    """Compute the loss of every position and the gradients of ``grad_scale`` times their sum, in a single launch.

    In PyTorch, with z as in the forward::

        loss = F.cross_entropy(z, targets, reduction="none")
        torch.autograd.grad(grad_scale * loss.sum(), (input, weight, bias))

    The float32 logits of a block of positions stay in HBM, so that the launch takes three products; separate forward
    and backward launches take four. Beyond inputs and outputs the kernel takes 4 N D bytes of HBM per core, the logits
    of a block, and, where there are several blocks, 4 V D bytes for the sum of dW: together at most
    ``4 * cores * N * D + scratch_bytes + 4 * V * D``. An X whose dtype differs from that of the products is copied, as
    in the backward. Launch it like the forward.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        D: features (16 to 16,384).
        V: classes of the weight (1 to 2^24).

    Args:
        input_hbm, weight_hbm, targets_hbm, bias_hbm, class_weight_hbm, weight_layout, ignore_index, label_smoothing,
            logit_softcap, lse_square_scale, temperature, logit_scale, compute_dtype, temperature_hbm: see
            ``linear_cross_entropy_forward``.
        grad_scale: the factor of every loss: 1 over the number of valid positions for the mean, 1.0 for the sum.
        grad_scale_hbm: [1], float32, in HBM: the same factor, if only the device knows it. Give one of the two.
        scratch_bytes: the number of bytes that the logits of a block may take, at least the logits of 128 positions.
            All positions are one block if their logits take no more than this and the sum of dW together.
        position_block, class_block: see ``linear_cross_entropy_backward``.
        grad_input_wanted, grad_weight_wanted, grad_bias_wanted: see ``linear_cross_entropy_backward``.

    Returns:
        loss and lse, [N] float32; then the wanted gradients, in the order and dtypes of the backward.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "linear_cross_entropy_forward_backward"
    launch = LinearLaunch(
        function,
        input_hbm,
        weight_hbm,
        bias_hbm,
        class_weight_hbm,
        weight_layout,
        compute_dtype,
        targets_hbm=targets_hbm,
        temperature_hbm=temperature_hbm,
    )
    recipe = LossOptions(ignore_index, label_smoothing, logit_softcap, lse_square_scale, temperature)
    options = validated_linear_options(launch, recipe, logit_scale, 0, None)
    scale = validated_grad_scale(function, grad_scale, grad_scale_hbm)
    validate_scratch_bytes(launch, scratch_bytes)
    wanted = WantedGradients.of(grad_input_wanted, grad_weight_wanted, grad_bias_wanted, bias_hbm)
    validate_wanted_gradients(launch, wanted)
    extended = has_options(launch, options)
    tiling = validated_tiling(launch, extended, FORWARD_BACKWARD, position_block, class_block, scratch_bytes)
    results = Results.of_options(launch.num_positions, options)
    gradients = Gradients.of_launch(launch, wanted)
    one_launch(launch, options, tiling, scale, scratch_bytes, results, gradients)
    return (*results.returned(), *gradients.returned())
