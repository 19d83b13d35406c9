"""Distillation from hidden states: the divergence of a student from a teacher and its gradients, without logits in HBM.

The forward multiplies tiles of X and W of both models and folds each pair of tiles of logits into what is known of its
positions. The cores of a launch split the vocabulary.
"""

from __future__ import annotations

from nkilib.experimental.loss.cross_entropy.options import Classes
from nkilib.experimental.loss.linear_distillation.forward import forward_of_core
from nkilib.experimental.loss.linear_distillation.options import (
    STUDENT,
    TEACHER,
    ModelOperands,
    PairLaunch,
    PairOptions,
    PairWanted,
)
from nkilib.experimental.loss.linear_distillation.pair_results import PairResults
from nkilib.experimental.loss.linear_distillation.pair_sizes import forward_sizes
from nkilib.experimental.loss.linear_distillation.validation import validate_pair, validated_forward_tiling
from nkilib.nki import nl


def linear_distillation_forward(
    student_input_hbm: nl.NkiTensor,
    student_weight_hbm: nl.NkiTensor,
    teacher_input_hbm: nl.NkiTensor,
    teacher_weight_hbm: nl.NkiTensor,
    labels_hbm: nl.NkiTensor | None = None,
    student_bias_hbm: nl.NkiTensor | None = None,
    teacher_bias_hbm: nl.NkiTensor | None = None,
    row_weight_hbm: nl.NkiTensor | None = None,
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
) -> tuple[nl.NkiTensor, ...]:
    """TODO."""
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
        Classes(first_class, student.vocab_size, student.vocab_size if num_classes is None else num_classes),
        labels_hbm,
        row_weight_hbm,
        PairWanted(with_logprob, with_target),
    )
    sizes = forward_sizes(launch)
    tiling = validated_forward_tiling(launch, sizes, position_block, class_block)
    results = PairResults.of_launch(launch)
    forward_of_core(launch, tiling, results, sizes)
    return results.returned()
