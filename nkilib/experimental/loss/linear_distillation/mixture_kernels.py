# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of a mixture of student and teacher: the forward of its divergence, and its sums over a vocabulary shard.

The forward has scores that are kept, or both products twice. Its kernel is in :mod:`.kernels`, with that of any other
divergence.
"""

from __future__ import annotations

from nkilib.core.cores import meet
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

# Of the instructions of a program, for each of two visits that both have products.
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
    """Sums of a divergence from the mixture of two distributions over a shard of the vocabulary.

    With z, P, Q and M = beta P + (1 - beta) Q as in ``linear_distillation_forward``, over the classes of all shards::

        q, p = (z_s - lse_s).exp(), (z_t - lse_t).exp()         # [N, V], of the classes at hand
        m = beta * p + (1 - beta) * q
        student_terms, teacher_terms = (q * (q / m).log()).sum(1), (p * (p / m).log()).sum(1)
        student_mass, teacher_mass = q.sum(1), p.sum(1)

    Each is a summand: add the results of all shards. Then KL(Q || M), the moment that the backward takes, is
    student_terms / student_mass, and the divergence is ``beta * teacher_terms / teacher_mass + (1 - beta) * moment``.
    The masses of all shards are 1 but for the rounding of the log-sum-exps, which the quotient removes. Both products
    run again; beyond inputs and outputs there are at most biases that are rounded. Launch as the forward.

    A class that a model masks has probability 0 there; all sums are finite. Of a position that masks every class of a
    model, over all shards, the results are not defined.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        Ds, Dt: features of student and teacher (16 to 16,384).
        V: classes of the weights (1 to 2^24).

    Args:
        student_input_hbm, student_weight_hbm, teacher_input_hbm, teacher_weight_hbm, student_bias_hbm,
            teacher_bias_hbm, student_weight_layout, teacher_weight_layout, temperature, student_logit_scale,
            teacher_logit_scale, student_logit_softcap, teacher_logit_softcap, compute_dtype: as in the forward.
        student_maximum_hbm, student_log_sum_hbm, teacher_maximum_hbm, teacher_log_sum_hbm: [N], float32, in HBM: from
            the forward; of a shard, those over all shards: with the largest maximum m, log_sum is
            ``log(sum(exp(maximum - m) * exp(log_sum)))`` over the shards.
        position_block: positions whose X is on chip at a time, a multiple of 128; None: what
            ``choose_linear_distillation_tiling`` says.
        class_block: classes of a core that are worked on at a time, a multiple of 128, at most 512; None likewise.
        beta: strictly between 0 and 1.

    Returns:
        student_terms and teacher_terms, in nats, of a shard of either sign; student_mass and
        teacher_mass, of at least 0: [N] float32 each.

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
    """The results of a launch over all classes, whose beta is strictly between 0 and 1.

    Args:
        launch: of the kernel.
        memory_limit: bytes of HBM that kept scores may take.
        position_block, class_block: of the first visit; None for what is chosen.

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
        meet(vector_hbm)
    store = MixtureStore(launch, results.divergence_hbm, results.moment_hbm)
    mixture_of_core(launch, vectors, second, tiling_of_second, store.store_of_vectors)
    return results
