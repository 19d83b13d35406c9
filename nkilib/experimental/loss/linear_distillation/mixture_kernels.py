# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of a mixture of student and teacher: the forward of its divergence, and its sums over a vocabulary shard.

The forward keeps the scores, or runs both products twice. Its kernel is in :mod:`.kernels`, together with the other
divergences.
"""

from __future__ import annotations

from nkilib.core.cores import synchronise
from nkilib.core.hbm import HbmTensor
from nkilib.experimental.loss.linear_distillation.forward.one_core import forward_of_core
from nkilib.experimental.loss.linear_distillation.forward.pair_results import PairResults
from nkilib.experimental.loss.linear_distillation.host.kept_tiling import KeptSizes
from nkilib.experimental.loss.linear_distillation.host.memory import keeps_scores
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import MixtureSizes
from nkilib.experimental.loss.linear_distillation.mixture.products import mixture_of_core
from nkilib.experimental.loss.linear_distillation.mixture.results import MixtureResults, MixtureStore
from nkilib.experimental.loss.linear_distillation.mixture.rows import PairVectors
from nkilib.experimental.loss.linear_distillation.mixture.visit import KeptVisit
from nkilib.experimental.loss.linear_distillation.shared.options import (
    STUDENT,
    TEACHER,
    ModelOperands,
    PairLaunch,
    PairOptions,
)
from nkilib.experimental.loss.linear_distillation.shared.sizes import forward_sizes
from nkilib.experimental.loss.linear_distillation.validation import (
    validate_mixture,
    validate_pair,
    validated_forward_tiling,
    validated_mixture_tiling,
    validated_pair_classes,
)
from nkilib.nki import nl

# The share of the instructions of a program for each of two visits that both have products.
_SHARE = 0.5


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
) -> tuple[nl.NkiTensor, ...]:
    """Compute the sums of a divergence from the mixture of two distributions over a shard of the vocabulary.

    With z, P, Q and M = beta P + (1 - beta) Q as in ``linear_distillation_forward``, over the classes of all shards::

        q, p = (z_s - lse_s).exp(), (z_t - lse_t).exp()         # [N, V], of the classes of this shard
        m = beta * p + (1 - beta) * q
        student_terms, teacher_terms = (q * (q / m).log()).sum(1), (p * (p / m).log()).sum(1)
        student_mass, teacher_mass = q.sum(1), p.sum(1)

    Each result is a summand: add up those of all shards. Then KL(Q || M), the moment that the backward takes, is
    student_terms / student_mass, and the divergence is ``beta * teacher_terms / teacher_mass + (1 - beta) * moment``.
    The masses over all shards are 1 except for the rounding of the log-sum-exps, which the quotient removes. Both
    products run again; beyond inputs and outputs there is no HBM. Launch like
    ``linear_distillation_forward``.

    A class that a model masks has probability 0 there; all sums are finite. Where every class of a
    model is masked, over all shards, the results of the position are not defined.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        Ds, Dt: features of student and teacher (16 to 16,384).
        V: classes of the weights (1 to 2^24).

    Args:
        student_input_hbm, student_weight_hbm, teacher_input_hbm, teacher_weight_hbm, student_bias_hbm,
            teacher_bias_hbm, student_weight_layout, teacher_weight_layout, temperature, student_logit_scale,
            teacher_logit_scale, student_logit_softcap, teacher_logit_softcap, compute_dtype: see
            ``linear_distillation_forward``.
        student_maximum_hbm, student_log_sum_hbm, teacher_maximum_hbm, teacher_log_sum_hbm: [N], float32, in HBM:
            results of the forward; for a shard, those over all shards: with the largest maximum m, log_sum is
            ``log(sum(exp(maximum - m) * exp(log_sum)))`` over the shards.
        position_block: the number of positions whose X is on chip at a time, a multiple of 128; None: the choice of
            ``choose_linear_distillation_tiling``.
        class_block: the number of classes that a core processes at a time, a multiple of 128, at most 512; None:
            the choice of that function.
        beta: strictly between 0 and 1.

    Returns:
        student_terms and teacher_terms, in nats, for a shard of either sign; student_mass and teacher_mass, of at least
        0: [N] float32 each.

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
    launch = PairLaunch(function, student, teacher, PairOptions(beta, temperature), classes)
    vectors = PairVectors(student_maximum_hbm, student_log_sum_hbm, teacher_maximum_hbm, teacher_log_sum_hbm)
    validate_pair(launch)
    validate_mixture(launch, vectors)
    sizes = MixtureSizes(forward_sizes(launch))
    tiling = validated_mixture_tiling(launch, sizes, position_block, class_block)
    results = MixtureResults.make(launch.num_positions)
    mixture_of_core(launch, vectors, sizes, tiling, results.store)
    return results.returned()


def mixed_forward(
    launch: PairLaunch, memory_limit: int, position_block: int | None, class_block: int | None
) -> PairResults:
    """Compute the results of a launch over all classes, whose beta is strictly between 0 and 1.

    Args:
        launch: the launch of the kernel.
        memory_limit: bytes of HBM that kept scores may take.
        position_block, class_block: the blocks of the first visit; None for the chosen ones.

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
    of_half = forward_sizes(launch, _SHARE)
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
