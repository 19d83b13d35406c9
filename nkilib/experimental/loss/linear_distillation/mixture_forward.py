"""The forward of a divergence from a mixture: with scores that are kept, or with both products twice."""

from __future__ import annotations

from nkilib.experimental.loss.linear.cores import meet
from nkilib.experimental.loss.linear_distillation.forward import forward_of_core
from nkilib.experimental.loss.linear_distillation.host.kept_tiling import KeptSizes
from nkilib.experimental.loss.linear_distillation.host.memory import keeps_scores
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import MixtureSizes
from nkilib.experimental.loss.linear_distillation.mixture_products import mixture_of_core
from nkilib.experimental.loss.linear_distillation.mixture_results import MixtureStore
from nkilib.experimental.loss.linear_distillation.mixture_rows import PairVectors
from nkilib.experimental.loss.linear_distillation.mixture_validation import validated_mixture_tiling
from nkilib.experimental.loss.linear_distillation.mixture_visit import KeptVisit
from nkilib.experimental.loss.linear_distillation.options import PairLaunch
from nkilib.experimental.loss.linear_distillation.pair_results import PairResults
from nkilib.experimental.loss.linear_distillation.pair_sizes import forward_sizes
from nkilib.experimental.loss.linear_distillation.validation import validated_forward_tiling

# Of the instructions of a program, for each of two visits that both have products.
_SHARE = 0.5


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
