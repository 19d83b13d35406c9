# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of distillation from hidden states: the divergence of a student from a teacher and its gradients.

No logits are in HBM, except those that a mixture keeps. :func:`linear_distillation_forward` multiplies tiles of X and W
(input and weight) of both models and adds each pair of tiles of logits to the statistics of its positions. The cores of
a launch split the vocabulary. The divergence from a mixture of both distributions needs a second pass over the classes,
for which the forward keeps the scores or runs both products twice. :func:`linear_distillation_mixture` computes the
sums of this second pass over a vocabulary shard. :func:`linear_distillation_backward` computes the gradients of the
student's operands.
"""

from __future__ import annotations

from nkilib.core.cores import synchronise
from nkilib.core.hardware import HbmTensor
from nkilib.experimental.loss.linear.launch import Gradients, WantedGradients
from nkilib.experimental.loss.linear.validation import validate_wanted_gradients
from nkilib.experimental.loss.linear_distillation.backward import backward_of_core
from nkilib.experimental.loss.linear_distillation.forward.one_core import forward_of_core
from nkilib.experimental.loss.linear_distillation.forward.pair_results import PairResults
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import (
    MEMORY_LIMIT,
    KeptSizes,
    MixtureSizes,
    keeps_scores,
)
from nkilib.experimental.loss.linear_distillation.launch import (
    STUDENT,
    TEACHER,
    ModelOperands,
    ModelStatistics,
    PairLaunch,
    PairOptions,
    PairUpstream,
    PairVectors,
    PairWanted,
    backward_sizes,
    forward_sizes,
)
from nkilib.experimental.loss.linear_distillation.mixture.kept_visit import KeptVisit
from nkilib.experimental.loss.linear_distillation.mixture.recomputed_visit import mixture_of_core
from nkilib.experimental.loss.linear_distillation.mixture.sums import MixtureResults, MixtureStore
from nkilib.experimental.loss.linear_distillation.validation import (
    validate_memory_limit,
    validate_mixture,
    validate_pair,
    validate_pair_upstream,
    validated_backward_tiling,
    validated_forward_tiling,
    validated_mixture_tiling,
    validated_pair_classes,
)
from nkilib.nki import nl

# The share of the instructions of a program for each of the two passes of a mixture, which both have products.
_VISIT_SHARE = 0.5


def _mixed_forward(
    launch: PairLaunch, memory_limit: int, position_block: int | None, class_block: int | None
) -> PairResults:
    """Compute the results of a launch whose beta is strictly between 0 and 1, and whose weights have all classes.

    Args:
        memory_limit: the bytes of HBM that kept scores may take.
        position_block, class_block: the blocks of the first pass; None for the chosen ones.

    Raises:
        AssertionError: before anything is written, if a block is not accepted.
    """
    if keeps_scores(launch.num_positions, launch.vocab_size, memory_limit):
        sizes = KeptSizes(forward_sizes(launch), memory_limit)
        tiling = validated_forward_tiling(launch, sizes, position_block, class_block)
        results = PairResults.of_launch(launch)
        store = MixtureStore(launch, results.divergence_hbm, results.moment_hbm)
        forward_of_core(launch, tiling, results, sizes.forward, KeptVisit.make(launch, sizes, tiling, store))
        return results
    of_half = forward_sizes(launch, _VISIT_SHARE)
    tiling = validated_forward_tiling(launch, of_half, position_block, class_block)
    second = MixtureSizes(of_half)
    tiling_of_second = validated_mixture_tiling(launch, second, None, None)
    results = PairResults.of_launch(launch)
    forward_of_core(launch, tiling, results, of_half, has_divergence=False)
    vectors = PairVectors(
        results.student_maximum_hbm,
        results.student_log_sum_hbm,
        results.teacher_maximum_hbm,
        results.teacher_log_sum_hbm,
    )
    # A core stores some of the vectors, and both need all of them.
    for vector_hbm in vectors.named().values():
        synchronise(vector_hbm)
    store = MixtureStore(launch, results.divergence_hbm, results.moment_hbm)
    mixture_of_core(launch, vectors, second, tiling_of_second, store.store_of_vectors)
    return results


def linear_distillation_mixture(
    student_input_hbm: HbmTensor,
    student_weight_hbm: HbmTensor,
    teacher_input_hbm: HbmTensor,
    teacher_weight_hbm: HbmTensor,
    student_maximum_hbm: HbmTensor,
    student_log_sum_hbm: HbmTensor,
    teacher_maximum_hbm: HbmTensor,
    teacher_log_sum_hbm: HbmTensor,
    student_bias_hbm: HbmTensor | None = None,
    teacher_bias_hbm: HbmTensor | None = None,
    *,
    student_weight_layout: str = "vd",
    teacher_weight_layout: str = "vd",
    position_block: int | None = None,
    class_block: int | None = None,
    beta: float = 0.5,
    temperature: float = 1.0,
    student_logit_scale: float = 1.0,
    teacher_logit_scale: float = 1.0,
    student_logit_softcap: float | None = None,
    teacher_logit_softcap: float | None = None,
    compute_dtype: nl.DType | None = None,
    temperature_hbm: HbmTensor | None = None,
) -> tuple[nl.NkiTensor, ...]:
    """Compute the sums of a divergence from the mixture of two distributions over a shard of the vocabulary.

    With z, P, Q and M = beta P + (1 - beta) Q as in ``linear_distillation_forward``, over the classes of all shards::

        q, p = (z_s - lse_s).exp(), (z_t - lse_t).exp()         # [N, V], of the classes of this shard
        m = beta * p + (1 - beta) * q
        student_terms, teacher_terms = (q * (q / m).log()).sum(1), (p * (p / m).log()).sum(1)
        student_mass, teacher_mass = q.sum(1), p.sum(1)

    Add up each result over all shards. Then KL(Q || M), the moment that the backward takes, is student_terms /
    student_mass, and the divergence is ``beta * teacher_terms / teacher_mass + (1 - beta) * moment``. The masses over
    all shards are 1 except for the rounding of the log-sum-exps, which the quotient removes. The products of both
    models are recomputed; beyond inputs and outputs the kernel uses no HBM. Launch it like
    ``linear_distillation_forward``.

    A class that a model masks has probability 0 in this model; all sums are finite. Where a model masks every class,
    over all shards, the results of the position are not defined.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        Ds, Dt: features of student and teacher (16 to 16,384).
        V: classes of the weights (1 to 2^24).

    Args:
        student_input_hbm, student_weight_hbm, teacher_input_hbm, teacher_weight_hbm, student_bias_hbm,
            teacher_bias_hbm, student_weight_layout, teacher_weight_layout, temperature, student_logit_scale,
            teacher_logit_scale, student_logit_softcap, teacher_logit_softcap, compute_dtype, temperature_hbm: see
            ``linear_distillation_forward``.
        student_maximum_hbm, student_log_sum_hbm, teacher_maximum_hbm, teacher_log_sum_hbm: [N], float32, in HBM:
            results of the forward; for a shard, the results over all shards: with the largest maximum m, log_sum is
            ``log(sum(exp(maximum - m) * exp(log_sum)))`` over the shards.
        position_block: the number of positions whose X is on chip at a time, a multiple of 128. None takes the value of
            ``choose_linear_distillation_tiling``.
        class_block: the number of classes that a core processes at a time, a multiple of 128, at most 512. None takes
            the value of ``choose_linear_distillation_tiling``.
        beta: the weight of P in M, strictly between 0 and 1.

    Returns:
        Tuple of [N] float32 tensors in HBM: student_terms and teacher_terms, in nats, which may be negative for a
        shard; student_mass and teacher_mass, at least 0.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "linear_distillation_mixture"
    student = ModelOperands(
        function,
        student_input_hbm,
        student_weight_hbm,
        student_bias_hbm,
        None,
        student_weight_layout,
        compute_dtype,
        name=STUDENT,
        logit_scale=student_logit_scale,
        softcap=student_logit_softcap,
        temperature=temperature,
    )
    teacher = ModelOperands(
        function,
        teacher_input_hbm,
        teacher_weight_hbm,
        teacher_bias_hbm,
        None,
        teacher_weight_layout,
        compute_dtype,
        name=TEACHER,
        logit_scale=teacher_logit_scale,
        softcap=teacher_logit_softcap,
        temperature=temperature,
    )
    classes = validated_pair_classes(student, teacher, 0, None)
    options = PairOptions(beta, temperature)
    launch = PairLaunch(function, student, teacher, options, classes, temperature_hbm=temperature_hbm)
    vectors = PairVectors(student_maximum_hbm, student_log_sum_hbm, teacher_maximum_hbm, teacher_log_sum_hbm)
    validate_pair(launch)
    validate_mixture(launch, vectors)
    sizes = MixtureSizes(forward_sizes(launch))
    tiling = validated_mixture_tiling(launch, sizes, position_block, class_block)
    results = MixtureResults.make(launch.num_positions)
    mixture_of_core(launch, vectors, sizes, tiling, results.store)
    return results.returned()


def linear_distillation_forward(
    student_input_hbm: HbmTensor,
    student_weight_hbm: HbmTensor,
    teacher_input_hbm: HbmTensor,
    teacher_weight_hbm: HbmTensor,
    labels_hbm: HbmTensor | None = None,
    student_bias_hbm: HbmTensor | None = None,
    teacher_bias_hbm: HbmTensor | None = None,
    row_weight_hbm: HbmTensor | None = None,
    *,
    student_weight_layout: str = "vd",
    teacher_weight_layout: str = "vd",
    position_block: int | None = None,
    class_block: int | None = None,
    beta: float = 0.0,
    temperature: float = 1.0,
    ignore_index: int = -100,
    student_logit_scale: float = 1.0,
    teacher_logit_scale: float = 1.0,
    student_logit_softcap: float | None = None,
    teacher_logit_softcap: float | None = None,
    with_logprob: bool = False,
    with_target: bool = False,
    first_class: int = 0,
    num_classes: int | None = None,
    compute_dtype: nl.DType | None = None,
    memory_limit: int | None = None,
    temperature_hbm: HbmTensor | None = None,
) -> tuple[nl.NkiTensor, ...]:
    """Compute the divergence of a student from a teacher at every position, from hidden states and output weights.

    With ``z = softcap(s (X W^T + b), c) / T`` of each model, P = softmax(z) of the teacher, Q = softmax(z) of the
    student and M = beta * P + (1 - beta) * Q, the divergence is

    - beta = 0: KL(P || Q), in PyTorch and in float32 throughout, ``F.kl_div(log_softmax(z_s), log_softmax(z_t),
      log_target=True, reduction="none").sum(1)``;
    - beta = 1: KL(Q || P);
    - beta between 0 and 1: beta * KL(P || M) + (1 - beta) * KL(Q || M), generalized Jensen-Shannon (arXiv 2306.13649).

    There is no factor T^2. For a Kullback-Leibler divergence the logits of neither model reach HBM: beyond inputs and
    outputs the kernel uses no HBM. A divergence from a mixture needs a second pass over the classes, for which the
    float32 logits of two blocks of positions are kept, as ``memory_limit`` allows. Launch it with
    ``linear_distillation_forward[2](...)`` on a logical NeuronCore of two cores. Without ``[2]`` it runs on as many
    cores as ``NEURON_LOGICAL_NC_CONFIG`` gives, or on one.

    A class whose bias is -inf is masked. A class that both models mask adds nothing. A class that only the teacher
    masks adds nothing to KL(P || Q), and makes KL(Q || P) infinite if Q of the class is 2^-68 or more. A class that
    only the student masks adds nothing to KL(Q || P), and makes KL(P || Q) infinite if P of the class is 2^-68 or more.
    A mean difference of logits of 2^48 or more also gives an infinite divergence; a softcap or a logit scale of less
    than 1 multiplies this limit. Logits of a model must stay within 2^115, and within 2^115 times such a softcap or
    scale.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        Ds, Dt: features of student and teacher (16 to 16,384).
        V: classes of the weights (1 to 2^24).

    Args:
        student_input_hbm, teacher_input_hbm: X, [N, Ds] and [N, Dt], bfloat16, float32 or float16, in HBM.
        student_weight_hbm, teacher_weight_hbm: W, [V, Ds] and [V, Dt], or transposed by their layouts, in the dtype of
            their X unless there is a ``compute_dtype``, in HBM. The dtypes of the models may differ.
        labels_hbm: [N], int32, in HBM: positions whose label is ``ignore_index`` are ignored. None means that every
            position is valid.
        student_bias_hbm, teacher_bias_hbm: b, [V], float32 or the dtype of W, or any of the three dtypes if
            ``compute_dtype`` is given, in HBM.
        row_weight_hbm: [N], float32, in HBM: multiplies the divergence of each position.
        student_weight_layout, teacher_weight_layout: ``"vd"``, as the weight of ``torch.nn.Linear``, or ``"dv"``, its
            transpose.
        position_block: the number of positions whose X is on chip at a time, a multiple of 128. None takes the value of
            ``choose_linear_distillation_tiling``.
        class_block: the number of classes that a core processes at a time, a multiple of 128, at most 512. None takes
            the value of ``choose_linear_distillation_tiling``.
        beta: from 0 to 1, selects the divergence as above.
        temperature: T, from 1e-3 to 1e6. It divides the logits of both models, after the cap. Like scales and caps it
            is a constant of the compiled kernel: each new value compiles the kernel again.
        ignore_index: the label of ignored positions, an int32.
        student_logit_scale, teacher_logit_scale: s, from 1e-6 to 1e6. It multiplies product and bias, before the cap.
        student_logit_softcap, teacher_logit_softcap: c, from 1e-30 to 1e30, or None; arXiv 2408.00118. The softcap of
            one model, or its logit scale if it has no softcap, is at most 1e12 times that of the other model.
        with_logprob: also return the student's log-probability of each label.
        with_target: also return the student's z at each label.
        first_class: the class of the first row of the weights, if they are a shard of the vocabulary. Labels count
            over all classes.
        num_classes: the number of classes of all shards, up to 2^24; None for V. For a shard, entropy, divergence,
            maximum and log_sum are those of the softmaxes over the classes of the shard alone. For beta between 0 and
            1, divergence and moment of a shard are 0, and ``linear_distillation_mixture`` computes their summands.
        compute_dtype: bfloat16, float16 or float32. X and W are each rounded from their own dtype to it for the
            products. None takes the dtype of each X. Biases are added in float32, and never rounded.
        memory_limit: only for beta between 0 and 1: the bytes of HBM for the float32 logits of both models, which are
            kept from the first pass over the classes to the second. Two blocks of positions are kept at a time, 1,024 V
            bytes for each tile of 128 positions, and ``memory_limit`` bounds their size. If two tiles do not fit, or
            the only one, nothing is kept and the products of both models are computed twice. None for 2 GiB.
        temperature_hbm: [N] or [1], float32, in HBM: T of each position or of all, in place of ``temperature``; no
            value compiles the kernel again. Where a temperature is not from 1e-3 to 1e6 (0, negative, infinite, NaN),
            the results of the position that depend on it are NaN; at an ignored position it counts as 1.

    Returns:
        Tuple of [N] float32 tensors in HBM: divergence (nats), never negative, times the row weight, 0 where ignored;
        entropy of Q at every position; moment, an argument of the backward: KL(Q || M), or KL(Q || P) for beta 1, not
        weighted, at every position, and 0 for beta 0; student_maximum and student_log_sum, the largest z, m, and
        ``log(sum(exp(z - m)))`` of the student, which add up to its log-sum-exp; teacher_maximum and teacher_log_sum.
        Then the requested results: logprob, ``log Q[label]``, and target_logit, ``z_s[label]``, both 0 if the position
        is ignored or the class is in another shard. A divergence is NaN if a logit is +inf or NaN, or if a model masks
        every class; in a shard of the vocabulary, a model may mask every class.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "linear_distillation_forward"
    student = ModelOperands(
        function,
        student_input_hbm,
        student_weight_hbm,
        student_bias_hbm,
        None,
        student_weight_layout,
        compute_dtype,
        name=STUDENT,
        logit_scale=student_logit_scale,
        softcap=student_logit_softcap,
        temperature=temperature,
    )
    teacher = ModelOperands(
        function,
        teacher_input_hbm,
        teacher_weight_hbm,
        teacher_bias_hbm,
        None,
        teacher_weight_layout,
        compute_dtype,
        name=TEACHER,
        logit_scale=teacher_logit_scale,
        softcap=teacher_logit_softcap,
        temperature=temperature,
    )
    launch = PairLaunch(
        function,
        student,
        teacher,
        PairOptions(beta, temperature, ignore_index),
        validated_pair_classes(student, teacher, first_class, num_classes),
        labels_hbm,
        row_weight_hbm,
        PairWanted(with_logprob, with_target),
        temperature_hbm,
    )
    validate_pair(launch)
    validate_memory_limit(launch, memory_limit)
    if launch.is_mixed and not launch.classes.is_shard:
        limit = MEMORY_LIMIT if memory_limit is None else memory_limit
        return _mixed_forward(launch, limit, position_block, class_block).returned()
    sizes = forward_sizes(launch)
    tiling = validated_forward_tiling(launch, sizes, position_block, class_block)
    results = PairResults.of_launch(launch)
    forward_of_core(launch, tiling, results, sizes)
    return results.returned()


def linear_distillation_backward(
    student_input_hbm: HbmTensor,
    student_weight_hbm: HbmTensor,
    teacher_input_hbm: HbmTensor,
    teacher_weight_hbm: HbmTensor,
    moment_hbm: HbmTensor,
    student_maximum_hbm: HbmTensor,
    student_log_sum_hbm: HbmTensor,
    teacher_maximum_hbm: HbmTensor,
    teacher_log_sum_hbm: HbmTensor,
    grad_divergence_hbm: HbmTensor,
    labels_hbm: HbmTensor | None = None,
    student_bias_hbm: HbmTensor | None = None,
    teacher_bias_hbm: HbmTensor | None = None,
    row_weight_hbm: HbmTensor | None = None,
    grad_logprob_hbm: HbmTensor | None = None,
    *,
    student_weight_layout: str = "vd",
    teacher_weight_layout: str = "vd",
    position_block: int | None = None,
    class_block: int | None = None,
    beta: float = 0.0,
    temperature: float = 1.0,
    ignore_index: int = -100,
    student_logit_scale: float = 1.0,
    teacher_logit_scale: float = 1.0,
    student_logit_softcap: float | None = None,
    teacher_logit_softcap: float | None = None,
    first_class: int = 0,
    num_classes: int | None = None,
    compute_dtype: nl.DType | None = None,
    grad_input_wanted: bool = True,
    grad_weight_wanted: bool = True,
    grad_bias_wanted: bool | None = None,
    grad_weight_sum_hbm: HbmTensor | None = None,
    grad_input_float32: bool = False,
    temperature_hbm: HbmTensor | None = None,
) -> tuple[nl.NkiTensor, ...]:
    """Compute the gradients of :func:`linear_distillation_forward` for the student's input, weight and bias.

    The divergence and the label's log-probability are each weighted by their upstream gradient; the teacher has no
    gradient. In PyTorch, with the forward's results::

        results, upstream = (divergence, logprob), (grad_divergence, grad_logprob)
        torch.autograd.grad(results, (student_input, student_weight, student_bias), upstream)

    With P of the teacher, Q of the student and M = beta P + (1 - beta) Q, the gradient of the student's z is the
    upstream gradient times the row weight times

    - beta = 0: Q - P;
    - beta = 1: Q (log(Q / P) - KL(Q || P));
    - beta between 0 and 1: (1 - beta) Q (log(Q / M) - KL(Q || M)).

    The gradient of a tile of logits is rounded once, to the dtype of the student's products, for dX and dW. db is
    summed from the rounded gradients; if the products are 16-bit and the bias has another dtype, from the unrounded
    ones. Sums are float32. dX and dW are rounded once, to the dtypes of X and W; db is not rounded. A float16 gradient
    is scaled by a power of two, which the device chooses from the largest upstream gradient and removes in float32. So
    an upstream gradient that is infinite or NaN makes all gradients NaN, not only those of its position.

    Beyond inputs and outputs the kernel takes 4 N Ds bytes of HBM per core, and at most 64 MiB more per core if the
    positions take several blocks. An X whose dtype differs from that of its products is rounded once, to a copy; a
    weight is never copied. More than 65,536 positions are split into parts: a device loop processes one part after
    another, and adds up dW and db over them in float32, which takes 4 V Ds bytes more unless dW is float32.

    A class that a bias of -inf masks in the student has a gradient of 0, except for beta 0 without a softcap: there
    the gradient is -P, which is 0 if the teacher masks the class too. A class that only the teacher masks has the
    gradient that the formulas above give for P = 0, which is finite for beta less than 1. If KL(Q || P) is infinite,
    the gradient of its position is NaN or infinite, and so are the gradients of weight and bias; with products in
    float16, all gradients are NaN. Launch it like :func:`linear_distillation_forward`.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        Ds, Dt: features of student and teacher (16 to 16,384 each, together as many as fit SBUF).
        V: classes of both weights (1 to 2^24).

    Args:
        student_input_hbm, student_weight_hbm, teacher_input_hbm, teacher_weight_hbm, labels_hbm, student_bias_hbm,
            teacher_bias_hbm, row_weight_hbm, student_weight_layout, teacher_weight_layout, beta, temperature,
            ignore_index, student_logit_scale, teacher_logit_scale, student_logit_softcap, teacher_logit_softcap,
            first_class, num_classes, compute_dtype, temperature_hbm: see :func:`linear_distillation_forward`. A
            temperature gets no gradient. A temperature that is not accepted makes dW, db and the row of dX of its
            position NaN; with products in float16, all gradients.
        moment_hbm, student_maximum_hbm, student_log_sum_hbm, teacher_maximum_hbm, teacher_log_sum_hbm: [N], float32, in
            HBM: results of the forward; for a shard, the results over all shards. The moment is not read for beta 0.
        grad_divergence_hbm: [N], float32, in HBM: the upstream gradient of each divergence (nats). Values at ignored
            positions have no effect.
        grad_logprob_hbm: [N], float32, in HBM: the upstream gradient of each log-probability of a label; None for 0.
            Values at ignored positions have no effect.
        position_block: the number of positions whose gradients of logits are on chip at a time, a multiple of 128. None
            takes the value of ``choose_linear_distillation_tiling``.
        class_block: the number of classes that a core processes at a time, a multiple of 128. None takes the value of
            ``choose_linear_distillation_tiling``.
        grad_input_wanted, grad_weight_wanted: False saves the product, and the gradient is not returned.
        grad_bias_wanted: whether the gradient of the student's bias is returned; None stands for True if there is a
            bias.
        grad_weight_sum_hbm: float32, in the shape of student_weight_hbm, in HBM: dW is added to it in place, unrounded.
        grad_input_float32: return dX unrounded. Meant for a vocabulary shard, whose dX is one summand of the dX of all
            shards.

    Returns:
        The wanted gradients, in this order: grad_student_input [N, Ds] in the dtype of the input, or float32;
        grad_student_weight in layout and dtype of the weight, or ``grad_weight_sum_hbm`` itself; grad_student_bias [V],
        float32.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "linear_distillation_backward"
    student = ModelOperands(
        function,
        student_input_hbm,
        student_weight_hbm,
        student_bias_hbm,
        None,
        student_weight_layout,
        compute_dtype,
        name=STUDENT,
        logit_scale=student_logit_scale,
        softcap=student_logit_softcap,
        temperature=temperature,
    )
    teacher = ModelOperands(
        function,
        teacher_input_hbm,
        teacher_weight_hbm,
        teacher_bias_hbm,
        None,
        teacher_weight_layout,
        compute_dtype,
        name=TEACHER,
        logit_scale=teacher_logit_scale,
        softcap=teacher_logit_softcap,
        temperature=temperature,
    )
    launch = PairLaunch(
        function,
        student,
        teacher,
        PairOptions(beta, temperature, ignore_index),
        validated_pair_classes(student, teacher, first_class, num_classes),
        labels_hbm,
        row_weight_hbm,
        temperature_hbm=temperature_hbm,
    )
    validate_pair(launch)
    upstream = PairUpstream(
        ModelStatistics(student_maximum_hbm, student_log_sum_hbm),
        ModelStatistics(teacher_maximum_hbm, teacher_log_sum_hbm),
        moment_hbm,
        grad_divergence_hbm,
        grad_logprob_hbm,
    )
    validate_pair_upstream(launch, upstream)
    wanted = WantedGradients.of(
        grad_input_wanted, grad_weight_wanted, grad_bias_wanted, student_bias_hbm, grad_input_float32
    )
    validate_wanted_gradients(student, wanted, grad_weight_sum_hbm, "student_")
    sizes = backward_sizes(launch, upstream, grad_weight_sum_hbm is not None, wanted.bias)
    tiling = validated_backward_tiling(launch, sizes, position_block, class_block)
    gradients = Gradients.of_launch(student, wanted, grad_weight_sum_hbm)
    backward_of_core(launch, upstream, sizes, tiling, gradients)
    return gradients.returned()
