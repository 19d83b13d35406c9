# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cross-entropy loss and its gradient for large vocabularies, as plain and as extended kernels.

The plain kernels :func:`cross_entropy_forward` and :func:`cross_entropy_backward` require that every target is a valid
class; the extended kernels :func:`extended_cross_entropy_forward` and :func:`extended_cross_entropy_backward` have the
options of training recipes.

All kernels process batches of positions, one position per partition or in one of two other layouts, and chunks of the
vocabulary, so that no kernel needs a whole row on chip. The forwards read the logits from HBM once, the backwards read
and write them once. With all options disabled, the extended kernels cost no more than the plain ones except for the
mask of ignored positions.
"""

from __future__ import annotations

from nkilib.core.hardware import HbmTensor
from nkilib.core.rows.checks import require, require_flag, require_float_type
from nkilib.experimental.loss.cross_entropy.backward import backward_of_core
from nkilib.experimental.loss.cross_entropy.forward import forward_of_core
from nkilib.experimental.loss.cross_entropy.launch import (
    Classes,
    Launch,
    Layout,
    LossOptions,
    Options,
    PositionUpstream,
    UniformUpstream,
    Wanted,
    with_form,
)
from nkilib.experimental.loss.cross_entropy.results import Results, new_vector
from nkilib.experimental.loss.cross_entropy.validation import (
    validate_arrays,
    validate_lse,
    validate_tiles,
    validate_upstream,
    validated_options,
)
from nkilib.nki import nl


def _plain_options(launch: Launch) -> Options:
    return Options(Classes(0, launch.vocab_size, launch.vocab_size), is_plain=True)


def cross_entropy_forward(
    logits_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    positions_per_batch: int = 32,
    chunk_size: int = 32768,
    dtype: nl.DType = nl.bfloat16,
    lse_dtype: nl.DType | None = None,
    exact_maximum: bool | None = None,
    partitions_per_position: int = 1,
    positions_per_partition: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Compute the cross-entropy loss of every position, and the log-sum-exp that the backward needs.

    Equivalent to ``F.cross_entropy(logits, targets, reduction="none")`` and ``torch.logsumexp(logits, 1)`` in
    PyTorch. Launch with ``cross_entropy_forward[2](...)`` on a logical NeuronCore of two cores; without ``[2]``
    it runs on as many cores as ``NEURON_LOGICAL_NC_CONFIG`` says, or on one.

    Dimensions:
        N: positions, that is tokens (N > 0).
        V: vocabulary size (V > 0).

    Args:
        logits_hbm: [N, V], bfloat16, float16 or float32, in HBM.
        targets_hbm: [N], int32, in HBM; each in [0, V). Any other value causes an out-of-range access of the DMA
            engine.
        positions_per_batch: positions processed at a time, 1 to 128.
        chunk_size: vocabulary entries processed at a time, 1 to min(V, 65535), such that ``positions_per_batch *
            chunk_size * bytes(dtype) <= 24 MiB`` and a chunk fits a partition of SBUF.
        dtype: type of the tiles, to which the logits are rounded, and of the loss: bfloat16, float32, or float16 if the
            logits are float16. All statistics are float32 for every ``dtype``.
        lse_dtype: type of the log-sum-exp, bfloat16, float16 or float32; None means ``dtype``. A float16 result beyond
            65504 is infinite.
        exact_maximum: True computes the maximum of every row before its exponentials. False subtracts, instead of the
            maximum, a shift that is known earlier: the larger of the maximum of the row's first chunk and the target's
            logit. The few rows for which the shift is not exact enough are computed again. False requires at least two
            chunks per row, and a position for each core. None selects what is modelled to be faster: the shift for
            large launches of 16-bit types.
        partitions_per_position: F, the number of partitions of a position, a power of two up to 128. F > 1 is for
            launches of few positions; it requires at least F classes, and that an int32 can index N * V elements.
        positions_per_partition: the largest number of positions of a partition, which are consecutive in HBM. More than
            1 is for launches of few classes; it requires V of at most 4096. A launch that cannot have the requested
            layout, or that computes without the exact maximum, places one position on each partition. ``choose_tiling``
            requests the layout that is modelled to be fastest.

    Returns:
        loss_hbm: [N], ``dtype``, nats: ``log(sum(exp(logits))) - logits[target]``, never negative.
        lse_state_hbm: [N], ``lse_dtype``: ``log(sum(exp(logits)))``.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "cross_entropy_forward"
    layout = Layout(partitions_per_position, positions_per_partition)
    launch = Launch(function, logits_hbm, targets_hbm, None, positions_per_batch, chunk_size, dtype, layout=layout)
    lse_dtype = dtype if lse_dtype is None else lse_dtype
    validate_arrays(launch, allow_probabilities=False)
    require_float_type(function, "lse_dtype", lse_dtype)
    options = _plain_options(launch)
    validate_tiles(launch, options.forward_plan)
    options = with_form(launch, options, exact_maximum)
    loss_hbm = new_vector("loss_hbm", launch.num_positions, dtype)
    lse_state_hbm = new_vector("lse_state_hbm", launch.num_positions, lse_dtype)
    forward_of_core(launch, options, Results(loss_hbm, lse_state_hbm))
    return loss_hbm, lse_state_hbm


def cross_entropy_backward(
    logits_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    lse_state_hbm: HbmTensor,
    reduction: str = "mean",
    positions_per_batch: int = 32,
    chunk_size: int = 32768,
    dtype: nl.DType = nl.bfloat16,
    inplace: bool = True,
    partitions_per_position: int = 1,
    positions_per_partition: int = 1,
) -> nl.NkiTensor:
    """Compute the gradient of the cross-entropy loss with respect to the logits: ``scale * (softmax - onehot)``.

    Equivalent to the gradient of ``F.cross_entropy(logits, targets, reduction=reduction)`` in PyTorch. Launch it like
    the forward.

    Dimensions:
        N: positions, that is tokens (N > 0).
        V: vocabulary size (V > 0).

    Args:
        logits_hbm: [N, V], bfloat16, float16 or float32, in HBM: the logits passed to the forward.
        targets_hbm: [N], int32, in HBM: the targets passed to the forward.
        lse_state_hbm: [N], bfloat16, float16 or float32, in HBM: the log-sum-exp from the forward. Rounding it
            changes the gradient: bfloat16 moves lse by up to lse / 512, which for an lse of 32 changes exp(x - lse) by
            6 percent. Pass ``lse_dtype=nl.float32`` to the forward.
        reduction: ``"mean"`` (scale 1/N) or ``"sum"`` (scale 1).
        positions_per_batch, chunk_size: see the forward; the values may differ from the forward's.
        dtype: type of the tiles and of the gradient, which is rounded to it once: bfloat16, float32, or float16 if the
            logits are float16. All per-row scalars are float32. The smallest float16 number is 6e-8: the gradient of a
            mean over 4,096 positions is 0 where a probability is below 1.2e-4. To avoid this, scale the loss with
            ``grad_loss_hbm`` of the extended kernel.
        inplace: write the gradient over ``logits_hbm``, in its dtype; else into a new tensor.
        partitions_per_position, positions_per_partition: see the forward; the values may differ from the forward's. The
            gradient does not depend on these two.

    Returns:
        grad_logits_hbm: [N, V], ``dtype``; with ``inplace``, ``logits_hbm`` itself.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "cross_entropy_backward"
    layout = Layout(partitions_per_position, positions_per_partition)
    launch = Launch(function, logits_hbm, targets_hbm, None, positions_per_batch, chunk_size, dtype, layout=layout)
    validate_arrays(launch, allow_probabilities=False)
    options = _plain_options(launch)
    validate_tiles(launch, options.backward_plan)
    validate_lse(launch, lse_state_hbm)
    require(reduction in ("mean", "sum"), f'{function}: reduction must be "mean" or "sum", got {reduction}')
    require_flag(function, "inplace", inplace)
    scale = 1.0 / launch.num_positions if reduction == "mean" else 1.0
    return backward_of_core(launch, options, UniformUpstream(lse_state_hbm, scale), inplace)


def extended_cross_entropy_forward(
    logits_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    class_weight_hbm: HbmTensor | None = None,
    positions_per_batch: int = 32,
    chunk_size: int = 8192,
    dtype: nl.DType = nl.bfloat16,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    logit_softcap: float | None = None,
    lse_square_scale: float = 0.0,
    with_argmax: bool = False,
    with_entropy: bool = False,
    first_class: int = 0,
    num_classes: int | None = None,
    with_distance_sum: bool = False,
    with_log_sum: bool = False,
    exact_maximum: bool | None = None,
    temperature: float = 1.0,
    temperature_hbm: HbmTensor | None = None,
    partitions_per_position: int = 1,
    positions_per_partition: int = 1,
) -> tuple[nl.NkiTensor, ...]:
    """Compute the cross-entropy loss of every position with class weights, label smoothing, z-loss, cap and
    temperature.

    Let z be the logits, or ``c * tanh(logits / c)`` for a cap c, divided by the temperature. With lse the
    log-sum-exp of z, w the class weights (1 without any), e the label smoothing, s the factor of the squared
    log-sum-exp and V the number of classes, the loss is::

        (1 - e) * w[t] * (lse - z[t]) + (e / V) * sum_k w[k] * (lse - z[k]) + s * lse^2

    and 0 where the target t is ``ignore_index``. For class probabilities y the loss is, with y' = (1 - e) * y + e / V::

        sum_k w[k] * y'[k] * (lse - z[k]) + s * lse^2

    Without s this is ``F.cross_entropy(z, targets, weight, reduction="none", ...)`` of PyTorch. Launch it like the
    plain kernel.

    Dimensions:
        N: positions, that is tokens (N > 0).
        V: classes of the logits (V > 0).

    Args:
        logits_hbm: [N, V], bfloat16, float16 or float32, in HBM.
        targets_hbm: [N], int32, in HBM, each a class or ``ignore_index``; any other value causes an out-of-range access
            of the DMA engine. Or class probabilities, [N, V], bfloat16, float16 or float32.
        class_weight_hbm: [V], float32, in HBM.
        positions_per_batch: positions processed at a time, 1 to 128.
        chunk_size: classes processed at a time, 1 to min(V, 65535); a chunk and the tiles that the options need in
            addition must fit a partition of SBUF. ``choose_tiling(..., extended=True)`` fits with any options.
        dtype: type of the tiles, to which the logits are rounded: bfloat16, float32, or float16 if the logits are
            float16.
        ignore_index: target of ignored positions, an integer of 32 bits.
        label_smoothing: e, in [0, 1]; arXiv 1512.00567.
        logit_softcap: c from 1e-30 to 1e30, or None; arXiv 2408.00118. Where a logit is -inf, z is -inf.
        lse_square_scale: s, from 0 to 1e30; arXiv 2204.02311.
        with_argmax: also return the first class with the largest logit; requires V of at most 2^24.
        with_entropy: also return the entropy of the softmax.
        first_class: class of the first column, if the logits are a shard of the vocabulary. Targets and argmax count
            over all classes. The loss of a shard is not defined: compute the loss from lse, target_logit and
            distance_sum of all shards.
        num_classes: number of classes of all shards; None means V.
        with_distance_sum: also return ``sum_k w[k] * (m - z[k])``, where m is the largest z of the position; for
            probabilities ``sum_k w[k] y'[k] (m - z[k])``.
        with_log_sum: also return m, the largest z, and ``log(sum_k exp(z[k] - m))``; their sum is lse. Combine maximum
            and log_sum of all shards instead of lse to avoid the rounding of a large lse. Without the exact maximum, m
            is the shift that the kernel used instead, which is at least the target's z, and ``sum_k exp(z[k] - m)`` is
            at most 2^23.
        exact_maximum: see the plain kernel. Class probabilities, label smoothing, a cap, argmax and distance sum need
            the maximum: with them None means True, and False raises AssertionError.
        temperature: divisor of the logits, applied after the cap; from 1e-6 to 1e6. It is a constant of the compiled
            kernel.
        temperature_hbm: [N] or [1], float32, in HBM: the temperature of each position or of all, in place of
            ``temperature``; new values need no new compilation. A temperature outside 1e-6 to 1e6 (0, negative,
            infinite, NaN) makes the results of its position NaN.
        partitions_per_position, positions_per_partition: see the plain kernel. Both count as 1 with class
            probabilities, with argmax, and with class weights together with label smoothing or distance sum. With a
            cap, ``positions_per_partition`` counts as 1.

    Returns:
        Tuple of [N] float32 in HBM: loss; lse; target_logit: ``z[t]``, or ``sum_k w[k] y'[k] z[k]`` for probabilities,
        0 if the position is ignored or its target is in another shard; position_weight: ``w[t]``, 0 in the same cases,
        or ``sum_k w[k] y'[k]`` for probabilities. These four are followed by the requested results among argmax (int32;
        num_classes in a row with a NaN), entropy, distance_sum, maximum and log_sum.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "extended_cross_entropy_forward"
    launch = Launch(
        function,
        logits_hbm,
        targets_hbm,
        class_weight_hbm,
        positions_per_batch,
        chunk_size,
        dtype,
        temperature_hbm,
        Layout(partitions_per_position, positions_per_partition),
    )
    recipe = LossOptions(ignore_index, label_smoothing, logit_softcap, lse_square_scale, temperature)
    wanted = Wanted(with_argmax, with_entropy, with_distance_sum, with_log_sum, target=True)
    options = validated_options(launch, recipe, first_class, num_classes, wanted)
    validate_tiles(launch, options.forward_plan)
    options = with_form(launch, options, exact_maximum)
    results = Results.of_options(launch.num_positions, options)
    forward_of_core(launch, options, results)
    return results.returned()


def extended_cross_entropy_backward(
    logits_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    lse_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    grad_lse_hbm: HbmTensor | None = None,
    grad_logprob_hbm: HbmTensor | None = None,
    class_weight_hbm: HbmTensor | None = None,
    positions_per_batch: int = 32,
    chunk_size: int = 8192,
    dtype: nl.DType = nl.bfloat16,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    logit_softcap: float | None = None,
    lse_square_scale: float = 0.0,
    inplace: bool = False,
    first_class: int = 0,
    num_classes: int | None = None,
    target_weight_hbm: HbmTensor | None = None,
    weight_sum: float | None = None,
    maximum_hbm: HbmTensor | None = None,
    log_sum_hbm: HbmTensor | None = None,
    temperature: float = 1.0,
    entropy_hbm: HbmTensor | None = None,
    grad_entropy_hbm: HbmTensor | None = None,
    temperature_hbm: HbmTensor | None = None,
    partitions_per_position: int = 1,
    positions_per_partition: int = 1,
) -> nl.NkiTensor:
    """Compute the gradient of the extended forward's results with respect to the logits.

    The result is the sum of the gradients of the loss, of lse, of the target's log-probability ``z[t] - lse`` and of
    the entropy, each multiplied by its upstream gradient. The row of an ignored position has only the gradients of lse
    and entropy, and is 0 if there are none. In PyTorch, with the forward's results::

        torch.autograd.grad((loss, lse, logprob, entropy), logits, (grad_loss, grad_lse, grad_logprob, grad_entropy))

    Dimensions:
        N: positions, that is tokens (N > 0).
        V: classes of the logits (V > 0).

    Args:
        logits_hbm, targets_hbm, class_weight_hbm, positions_per_batch, chunk_size, dtype, ignore_index,
            label_smoothing, logit_softcap, lse_square_scale, first_class, num_classes: see the forward. The tiling may
            differ from the forward's.
        lse_hbm: [N], float32, in HBM: lse from the forward; for a shard, lse over all shards.
        grad_loss_hbm: [N], float32, in HBM: gradient of each loss; the value of an ignored position is not read.
        grad_lse_hbm: [N], float32, in HBM: gradient of each lse.
        grad_logprob_hbm: [N], float32, in HBM: gradient of each log-probability; not with class probabilities.
        inplace: write the gradient over ``logits_hbm``, in its dtype; else into a new tensor.
        target_weight_hbm: [N], float32, in HBM: ``w[t]``, which a shard of weighted classes cannot know. For
            probabilities: ``sum_k w[k] y'[k]``, the forward's position_weight; if None, the kernel reads the
            probabilities once more.
        weight_sum: the sum of all class weights, a number; if None, the kernel adds up the weights, which a shard
            cannot do. Not used for probabilities.
        maximum_hbm, log_sum_hbm: [N], float32, in HBM: results of the forward's ``with_log_sum``; for a shard the
            values over all shards. With these two, the softmax is not affected by the rounding of a large lse.
        temperature: see the forward.
        entropy_hbm: [N], float32, in HBM: entropy from the forward's ``with_entropy``; for a shard, over all shards.
        grad_entropy_hbm: [N], float32, in HBM: gradient of each entropy; pass both of these tensors or neither.
        temperature_hbm: see the forward; temperatures get no gradient. A temperature that is not accepted makes the row
            of its position NaN.
        partitions_per_position, positions_per_partition: see the forward; the values may differ from the forward's.

    Returns:
        grad_logits_hbm: [N, V], ``dtype``; with ``inplace``, ``logits_hbm`` itself.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "extended_cross_entropy_backward"
    launch = Launch(
        function,
        logits_hbm,
        targets_hbm,
        class_weight_hbm,
        positions_per_batch,
        chunk_size,
        dtype,
        temperature_hbm,
        Layout(partitions_per_position, positions_per_partition),
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
    options = validated_options(launch, recipe, first_class, num_classes)
    require_flag(function, "inplace", inplace)
    validate_upstream(function, launch.num_positions, options, upstream, "the logits")
    validate_tiles(launch, options.backward_plan)
    return backward_of_core(launch, options, upstream, inplace)
