# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Linear cross-entropy: the loss of an output layer, ``X W^T + b``, and its gradients, without its logits in HBM.

The forward multiplies tiles of X and W and folds each tile of logits into what is known of its positions. The backward
computes the tiles again, makes the gradient of each of them, and multiplies that with W and X. The cores of a launch
split the vocabulary. A third kernel does both in one launch, and keeps the logits of a block of positions meanwhile.
"""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.experimental.loss.cross_entropy.options import LossOptions, Wanted
from nkilib.experimental.loss.cross_entropy.results import Results
from nkilib.experimental.loss.cross_entropy.upstream import PositionUpstream
from nkilib.experimental.loss.linear.shared.launch import Gradients, WantedGradients
from nkilib.experimental.loss.linear.validation import validate_wanted_gradients
from nkilib.experimental.loss.linear_cross_entropy.backward.gradient_columns import has_rest
from nkilib.experimental.loss.linear_cross_entropy.backward.one_core import backward_of_core
from nkilib.experimental.loss.linear_cross_entropy.forward.one_core import forward_of_core
from nkilib.experimental.loss.linear_cross_entropy.host.memory import SCRATCH_BYTES
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import BACKWARD, FORWARD, FORWARD_BACKWARD
from nkilib.experimental.loss.linear_cross_entropy.one_launch import one_launch
from nkilib.experimental.loss.linear_cross_entropy.shared.options import (
    LinearLaunch,
    forward_needs,
    has_options,
    without_loss,
)
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
) -> tuple[nl.NkiTensor, ...]:
    """Cross-entropy loss of every position, from hidden states and output weights.

    With ``y = s (X W^T + b)`` for a logit scale s, ``z = y / T`` for a temperature T, or ``c * tanh(y / c) / T`` for a
    cap c, the results are those of ``extended_cross_entropy_forward`` for the logits z. Without options it is, in
    PyTorch and in float32 throughout, ``F.cross_entropy(F.linear(input, weight, bias), targets, reduction="none")``. No
    logits reach HBM: beyond inputs and outputs the kernel takes none of it, but for a bias that is rounded. Launch with
    ``linear_cross_entropy_forward[2](...)`` on a logical NeuronCore of two cores; without ``[2]`` it runs on the cores
    that ``NEURON_LOGICAL_NC_CONFIG`` gives, or on one.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        D: features (16 to 16,384).
        V: classes of the weight (1 to 2^24).

    Args:
        input_hbm: X, [N, D], bfloat16, float32 or float16, in HBM.
        weight_hbm: W, [V, D], or [D, V] by ``weight_layout``, in the dtype of X unless there is a ``compute_dtype``,
            in HBM.
        targets_hbm: [N], int32, in HBM, each a class or ``ignore_index``. The loss at another value is not defined, and
            no memory out of bounds is touched for it.
        bias_hbm: b, [V], float32 or the dtype of W, or any of the three with a ``compute_dtype``, in HBM; -inf masks a
            class.
        class_weight_hbm: [V], float32, in HBM.
        weight_layout: ``"vd"``, as the weight of ``torch.nn.Linear``, or ``"dv"``, its transpose.
        position_block: positions whose X is on chip at a time, a multiple of 128; None: what ``choose_linear_tiling``
            says.
        class_block: classes of a core that are worked on at a time, a multiple of 128, at most 512; None likewise.
        ignore_index: target of positions that do not count, an integer of 32 bits.
        label_smoothing: e, in [0, 1]; arXiv 1512.00567.
        logit_softcap: c from 1e-30 to 1e30, or None; arXiv 2408.00118. Where a logit is -inf, z is.
        lse_square_scale: from 0 to 1e30, the factor of the squared log-sum-exp (z-loss); arXiv 2204.02311.
        temperature: T, from 1e-6 to 1e6, divides the logits, after the cap. A constant of the compiled kernel: each new
            value compiles anew.
        logit_scale: s, from 1e-6 to 1e6, multiplies product and bias, before the cap; likewise a constant.
        with_target: also return target_logit and position_weight.
        with_argmax: also return the first class of the largest z, of equal float32 z as they are computed.
        with_entropy: also return the entropy of the softmax.
        with_distance_sum: also return ``sum_k w[k] * (m - z[k])`` with the largest z, m, and the class weights w.
        with_log_sum: also return m and ``log(sum_k exp(z[k] - m))``, whose sum is lse.
        with_log_sum_squares: also return ``log(sum_k p[k]**2)`` of the softmax p; of a shard, of its own softmax.
        with_mean_logit: also return the mean of z over the classes of W that no bias of -inf masks.
        first_class: class of the first row of W, where it is a shard of the vocabulary. Targets and argmax count over
            all classes. The loss of a shard is not defined: it takes lse, target_logit and distance_sum of all.
        num_classes: of all shards, up to 2^24; None: V.
        compute_dtype: bfloat16, float16 or float32, which X, W and the bias are rounded to for the products, each from
            its own dtype. None: that of X, and a float32 bias is not rounded.

    Returns:
        Tuple of [N] float32 in HBM: loss (nats) and lse, ``log(sum(exp(z)))``. Then what was asked for: target_logit,
        ``z[t]``, and position_weight, ``w[t]`` or 1, both 0 where the position is ignored or the class in another
        shard; argmax (int32); entropy; distance_sum; maximum and log_sum; log_sum_squares; mean_logit.

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
) -> tuple[nl.NkiTensor, ...]:
    """Gradients of what the forward returns with respect to input, weight and bias.

    Of the loss, of lse, of the target's log-probability ``z[t] - lse`` and of the entropy, each times the gradient that
    comes to it. At least one of these upstream gradients is given, and one that is None costs nothing. In PyTorch, with
    the forward's results::

        results, upstream = (loss, lse, logprob, entropy), (grad_loss, grad_lse, grad_logprob, grad_entropy)
        torch.autograd.grad(results, (input, weight, bias), upstream)

    The gradient of a tile of logits is rounded to the dtype of the products once, sums are float32, and every result is
    rounded once, to the dtype of its operand: of float32 operands it is the unrounded sum. Of float16 it carries a
    power of two, chosen on the device for the largest upstream gradient, that is removed in float32: where one of them
    is infinite or NaN, all gradients are NaN, and not those of its position alone. Beyond inputs and outputs the kernel
    takes 4 N D bytes of HBM for each core, and where the positions take several blocks at most 64 MiB for each core
    more. An X of another dtype than the products is rounded once, to a copy of N D elements; of W there is no copy.
    More than 65,536 positions are split here: parts of at most 16,384 take their turns in a loop of the device, with dW
    and db added up in float32 over them, in 4 V D bytes more unless dW is float32. Launch as the forward.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        D: features (16 to 16,384).
        V: classes of the weight (1 to 2^24).

    Args:
        input_hbm, weight_hbm, targets_hbm, bias_hbm, class_weight_hbm, weight_layout, ignore_index, label_smoothing,
            logit_softcap, lse_square_scale, temperature, logit_scale, first_class, num_classes, compute_dtype: as in
            the forward.
        lse_hbm: [N], float32, in HBM: from the forward; of a shard, the one over all shards.
        grad_loss_hbm: [N], float32, in HBM: gradient of each loss; that of an ignored position is not looked at. None
            for no gradient of the loss, whose class weights and options are not looked at either then.
        grad_lse_hbm, grad_logprob_hbm: [N], float32, in HBM: gradients of each lse and log-probability; the gradient of
            the log-probability of an ignored position is not looked at, that of its lse is.
        position_block: positions whose gradients of logits are on chip at a time, a multiple of 128; None: what
            ``choose_linear_tiling`` says.
        class_block: classes of a core that are worked on at a time, a multiple of 128; None likewise.
        target_weight_hbm: [N], float32, in HBM: ``w[t]``, which a shard of weighted classes cannot know.
        weight_sum: the sum of all class weights, a number; summed here otherwise, which a shard cannot.
        maximum_hbm, log_sum_hbm: [N], float32, in HBM: from the forward's ``with_log_sum``, of a shard those over all
            shards. With them the softmax loses nothing to the rounding of a large lse.
        entropy_hbm, grad_entropy_hbm: [N], float32, in HBM: the entropy from the forward's ``with_entropy``, of a shard
            the entropy over all shards, and the gradient of each, of ignored positions too; both or neither. A class
            that is masked, with a logit of -inf, has a gradient of 0.
        grad_input_wanted, grad_weight_wanted: False saves the product, and the gradient is not returned.
        grad_bias_wanted: None stands for True with a bias.
        grad_weight_sum_hbm: float32, in the shape of W, in HBM: dW is added to it in place, unrounded.
        grad_input_float32: return dX unrounded, for a shard of the vocabulary: it is a summand of that of all.

    Returns:
        Those that are wanted, in this order: grad_input [N, D] in the dtype of X, or float32; grad_weight in layout
        and dtype of W, or ``grad_weight_sum_hbm`` itself; grad_bias [V], float32.

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
) -> tuple[nl.NkiTensor, ...]:
    """Loss of every position, and the gradients of ``grad_scale`` times their sum, in one launch.

    In PyTorch, with z as in the forward::

        loss = F.cross_entropy(z, targets, reduction="none")
        torch.autograd.grad(grad_scale * loss.sum(), (input, weight, bias))

    The logits of a block of positions stay in HBM in float32, so that three products suffice where forward and backward
    apart take four. Beyond inputs and outputs the kernel takes 4 N D bytes of HBM for each core, the logits of a block,
    and where there are several blocks 4 V D bytes for the sum of dW: together at most
    ``4 * cores * N * D + scratch_bytes + 4 * V * D``; and a copy of an X of another dtype than the products, as in the
    backward. Launch as the forward.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        D: features (16 to 16,384).
        V: classes of the weight (1 to 2^24).

    Args:
        input_hbm, weight_hbm, targets_hbm, bias_hbm, class_weight_hbm, weight_layout, ignore_index, label_smoothing,
            logit_softcap, lse_square_scale, temperature, logit_scale, compute_dtype: as in the forward.
        grad_scale: what every loss is multiplied with: 1 over the number of positions that count for the mean, 1.0 for
            the sum.
        grad_scale_hbm: [1], float32, in HBM: the same where only the device knows it. One of the two is given.
        scratch_bytes: that the logits of a block may take, at least those of 128 positions. All positions are one block
            where their logits take no more than this and the sum of dW.
        position_block, class_block: as in the backward.
        grad_input_wanted, grad_weight_wanted, grad_bias_wanted: as in the backward.

    Returns:
        loss and lse, [N] float32; then the gradients that are wanted, as from the backward.

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
