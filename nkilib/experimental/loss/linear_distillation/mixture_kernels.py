"""The sums of a mixture of student and teacher over a shard of the vocabulary."""

from __future__ import annotations

from nkilib.experimental.loss.cross_entropy.options import Classes
from nkilib.experimental.loss.linear_distillation.host.mixture_tiling import MixtureSizes
from nkilib.experimental.loss.linear_distillation.mixture_launch import validated_mixture_tiling
from nkilib.experimental.loss.linear_distillation.mixture_products import mixture_of_core
from nkilib.experimental.loss.linear_distillation.mixture_results import MixtureResults
from nkilib.experimental.loss.linear_distillation.mixture_rows import PairVectors
from nkilib.experimental.loss.linear_distillation.options import (
    STUDENT,
    TEACHER,
    ModelOperands,
    PairLaunch,
    PairOptions,
)
from nkilib.experimental.loss.linear_distillation.pair_sizes import forward_sizes
from nkilib.nki import nl


def linear_distillation_mixture(
    student_input_hbm: nl.NkiTensor,
    student_weight_hbm: nl.NkiTensor,
    teacher_input_hbm: nl.NkiTensor,
    teacher_weight_hbm: nl.NkiTensor,
    student_maximum_hbm: nl.NkiTensor,
    student_log_sum_hbm: nl.NkiTensor,
    teacher_maximum_hbm: nl.NkiTensor,
    teacher_log_sum_hbm: nl.NkiTensor,
    student_bias_hbm: nl.NkiTensor | None = None,
    teacher_bias_hbm: nl.NkiTensor | None = None,
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
    launch = PairLaunch(
        function, student, teacher, PairOptions(beta, temperature), Classes(0, student.vocab_size, student.vocab_size)
    )
    vectors = PairVectors(student_maximum_hbm, student_log_sum_hbm, teacher_maximum_hbm, teacher_log_sum_hbm)
    sizes = MixtureSizes(forward_sizes(launch))
    tiling = validated_mixture_tiling(launch, sizes, position_block, class_block)
    results = MixtureResults.make(launch.num_positions)

    mixture_of_core(launch, vectors, sizes, tiling, results.store)
    return results.returned()
