# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of token scores: log-probabilities of several target ids per position, and their gradients.

No logits are in HBM. :func:`linear_token_scores_forward` reads every tile of logits for the log-sum-exp; GpSimd picks
one element of the tile for each id of a position. :func:`linear_token_scores_backward` adds the gradients of the ids to
a tile of gradients before it is rounded (:mod:`.id_gradient`). With a single id the kernels run the code of linear
cross-entropy. A position has at most 64 ids.
"""

from __future__ import annotations

from dataclasses import replace

from nkilib.core.hardware import HbmTensor
from nkilib.experimental.loss.cross_entropy.launch import LossOptions, PositionUpstream, Wanted
from nkilib.experimental.loss.linear.launch import Gradients, WantedGradients
from nkilib.experimental.loss.linear.validation import validate_wanted_gradients
from nkilib.experimental.loss.linear_cross_entropy.backward import backward_of_core
from nkilib.experimental.loss.linear_cross_entropy.forward import ScoreResults, forward_of_core
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import BACKWARD, FORWARD
from nkilib.experimental.loss.linear_cross_entropy.launch import LinearLaunch, has_options, has_rest
from nkilib.experimental.loss.linear_cross_entropy.targets import one_or_several
from nkilib.experimental.loss.linear_cross_entropy.validation import (
    validate_score_upstream,
    validated_ids,
    validated_linear_options,
    validated_tiling,
)
from nkilib.nki import nl


def linear_token_scores_forward(
    input_hbm: HbmTensor,
    weight_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    bias_hbm: HbmTensor | None = None,
    *,
    weight_layout: str = "vd",
    position_block: int | None = None,
    class_block: int | None = None,
    ignore_index: int = -100,
    logit_softcap: float | None = None,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    with_target: bool = False,
    with_argmax: bool = False,
    with_entropy: bool = False,
    with_log_sum: bool = False,
    with_log_sum_squares: bool = False,
    with_mean_logit: bool = False,
    first_class: int = 0,
    num_classes: int | None = None,
    compute_dtype: nl.DType | None = None,
    temperature_hbm: HbmTensor | None = None,
) -> tuple[nl.NkiTensor, ...]:
    """Compute the log-probabilities of K target ids of every position, from hidden states and output weights.

    With ``z`` as ``linear_cross_entropy_forward`` defines it, in PyTorch terms and in float32 throughout::

        logprob = F.log_softmax(z, dim=1).gather(1, targets)  # 0 where targets == ignore_index

    No logits reach HBM. Launch it with ``linear_token_scores_forward[2](...)`` on a logical NeuronCore of two cores.
    Without ``[2]`` it runs on as many cores as ``NEURON_LOGICAL_NC_CONFIG`` gives, or on one.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        D: features (16 to 16,384).
        V: classes of the weight (1 to 2^24).
        K: target ids per position (1 to 64).

    Args:
        input_hbm, weight_hbm, bias_hbm, weight_layout, position_block, class_block, ignore_index, logit_softcap,
            temperature, logit_scale, num_classes, compute_dtype, temperature_hbm: see
            ``linear_cross_entropy_forward``.
        targets_hbm: [N, K], int32, in HBM, each a class or ``ignore_index``. The ids of a position may be equal. The
            log-probability at any other value is undefined, but no memory out of bounds is touched for it.
        with_target: also return ``z`` at each id.
        with_argmax, with_entropy, with_log_sum, with_log_sum_squares, with_mean_logit: further results, see
            ``linear_cross_entropy_forward``.
        first_class: the class of the first row of W, if W is a vocabulary shard. Ids count over all classes. The
            log-probability of a shard is undefined; compute it from lse and target_logit of all shards.

    Returns:
        Tuple of float32 tensors in HBM: logprob (nats), [N, K], 0 where the id is ignored, and lse,
        ``log(sum(exp(z)))``, [N]. Then the requested results: target_logit [N, K], 0 where the id is ignored or its
        class is in another shard; and per position, [N], argmax (int32); entropy; maximum and log_sum; log_sum_squares;
        mean_logit.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "linear_token_scores_forward"
    ids = validated_ids(function, input_hbm, targets_hbm)
    launch = LinearLaunch(
        function,
        input_hbm,
        weight_hbm,
        bias_hbm,
        None,
        weight_layout,
        compute_dtype,
        targets_hbm=one_or_several(targets_hbm),
        ids=ids,
        temperature_hbm=temperature_hbm,
    )
    recipe = LossOptions(ignore_index, logit_softcap=logit_softcap, temperature=temperature)
    wanted = Wanted(
        argmax=with_argmax,
        entropy=with_entropy,
        log_sum=with_log_sum,
        target=with_target,
        log_sum_squares=with_log_sum_squares,
        mean_logit=with_mean_logit,
    )
    options = validated_linear_options(launch, recipe, logit_scale, first_class, num_classes, wanted)
    tiling = validated_tiling(launch, has_options(launch, options), FORWARD, position_block, class_block)
    results = ScoreResults.of_options(launch, options)
    forward_of_core(launch, options, tiling, results)
    return results.returned()


def linear_token_scores_backward(
    input_hbm: HbmTensor,
    weight_hbm: HbmTensor,
    targets_hbm: HbmTensor,
    lse_hbm: HbmTensor,
    grad_logprob_hbm: HbmTensor | None = None,
    bias_hbm: HbmTensor | None = None,
    grad_lse_hbm: HbmTensor | None = None,
    *,
    weight_layout: str = "vd",
    position_block: int | None = None,
    class_block: int | None = None,
    ignore_index: int = -100,
    logit_softcap: float | None = None,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    first_class: int = 0,
    num_classes: int | None = None,
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
    """Compute the gradients of the results of ``linear_token_scores_forward`` with respect to input, weight and bias.

    The results are the log-probabilities, lse and the entropy, each weighted by its upstream gradient. At least one
    upstream gradient must be given. In PyTorch, with the forward's results::

        results, upstream = (logprob, lse, entropy), (grad_logprob, grad_lse, grad_entropy)
        torch.autograd.grad(results, (input, weight, bias), upstream)

    With g the gradients of the log-probabilities of a position and p its softmax, their part of the gradient of z
    is ``sum_k g_k (1[t_k = v] - p_v)`` for id t_k and class v. It is computed in float32 and rounded once, to the
    dtype of the products, so that nothing is lost where an id is confident or where ids are equal. Sums, results,
    HBM use and the power of two of float16 are those of ``linear_cross_entropy_backward``. More than 65,536
    positions are split into parts as there; with several ids, more than about 262,144 / K positions are already
    split, with K rounded up to a multiple of 8. Launch it like the forward.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        D: features (16 to 16,384).
        V: classes of the weight (1 to 2^24).
        K: target ids per position (1 to 64).

    Args:
        input_hbm, weight_hbm, targets_hbm, bias_hbm, weight_layout, ignore_index, logit_softcap, temperature,
            logit_scale, first_class, num_classes, compute_dtype, temperature_hbm: see
            ``linear_token_scores_forward``.
        lse_hbm: [N], float32, in HBM: lse from the forward; on a vocabulary shard, the lse over all shards.
        grad_logprob_hbm: [N, K], float32, in HBM: the upstream gradient of each log-probability. Values at ignored ids
            have no effect.
        grad_lse_hbm, maximum_hbm, log_sum_hbm, entropy_hbm, grad_entropy_hbm, position_block, class_block,
            grad_input_wanted, grad_weight_wanted, grad_bias_wanted, grad_weight_sum_hbm, grad_input_float32: see
            ``linear_cross_entropy_backward``.

    Returns:
        The wanted gradients, in this order: grad_input [N, D] in the dtype of X, or float32; grad_weight in layout and
        dtype of W, or ``grad_weight_sum_hbm`` itself; grad_bias [V], float32.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "linear_token_scores_backward"
    ids = validated_ids(function, input_hbm, targets_hbm)
    launch = LinearLaunch(
        function,
        input_hbm,
        weight_hbm,
        bias_hbm,
        None,
        weight_layout,
        compute_dtype,
        targets_hbm=one_or_several(targets_hbm),
        ids=ids,
        temperature_hbm=temperature_hbm,
    )
    recipe = LossOptions(ignore_index, logit_softcap=logit_softcap, temperature=temperature)
    upstream = PositionUpstream(
        lse_hbm,
        None,
        grad_lse_hbm,
        grad_logprob_hbm,
        None,
        None,
        maximum_hbm,
        log_sum_hbm,
        entropy_hbm,
        grad_entropy_hbm,
    )
    options = validated_linear_options(launch, recipe, logit_scale, first_class, num_classes)
    validate_score_upstream(launch, upstream)
    if grad_logprob_hbm is not None:
        upstream = replace(upstream, grad_logprob_hbm=one_or_several(grad_logprob_hbm))
    wanted = WantedGradients.of(grad_input_wanted, grad_weight_wanted, grad_bias_wanted, bias_hbm, grad_input_float32)
    validate_wanted_gradients(launch, wanted, grad_weight_sum_hbm)
    is_extended = has_options(launch, options, of_backward=True) or has_rest(launch, options, upstream)
    extended = is_extended or grad_weight_sum_hbm is not None
    tiling = validated_tiling(launch, extended, BACKWARD, position_block, class_block)
    gradients = Gradients.of_launch(launch, wanted, grad_weight_sum_hbm)
    backward_of_core(launch, options, tiling, upstream, gradients)
    return gradients.returned()
