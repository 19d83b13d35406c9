"""The kernel of the gradients of distillation from hidden states."""

from __future__ import annotations

from nkilib.core.hbm import HbmTensor
from nkilib.experimental.loss.linear.gradients import Gradients
from nkilib.experimental.loss.linear.launch import WantedGradients
from nkilib.experimental.loss.linear.validation import validate_wanted_gradients
from nkilib.experimental.loss.linear_distillation.backward import backward_of_core
from nkilib.experimental.loss.linear_distillation.backward_validation import (
    validate_pair_upstream,
    validated_backward_tiling,
)
from nkilib.experimental.loss.linear_distillation.gradient_sizes import backward_sizes
from nkilib.experimental.loss.linear_distillation.options import (
    STUDENT,
    TEACHER,
    ModelOperands,
    PairLaunch,
    PairOptions,
)
from nkilib.experimental.loss.linear_distillation.pair_upstream import ModelStatistics, PairUpstream
from nkilib.experimental.loss.linear_distillation.validation import validate_pair, validated_pair_classes
from nkilib.nki import nl


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
) -> tuple[nl.NkiTensor, ...]:
    """Gradients of what ``linear_distillation_forward`` returns with respect to the student's input, weight and bias.

    Of the divergence and of the label's log-probability, each times the gradient that comes to it; none of the
    teacher. In PyTorch, with the forward's results::

        results, upstream = (divergence, logprob), (grad_divergence, grad_logprob)
        torch.autograd.grad(results, (student_input, student_weight, student_bias), upstream)

    With P of the teacher, Q of the student and M = beta P + (1 - beta) Q, the gradient of the student's z is the
    upstream gradient times the row weight times Q - P for beta 0, Q (log(Q / P) - KL(Q || P)) for beta 1, and
    (1 - beta) Q (log(Q / M) - KL(Q || M)) between.

    The gradient of a tile of logits is rounded to the dtype of the student's products once, sums are float32, and every
    result is rounded once, to the dtype of its operand: of float32 operands it is the unrounded sum. Of float16 it
    carries a power of two, chosen on the device for the largest upstream gradient, that is removed in float32: where
    one of them is infinite or NaN, all gradients are NaN, and not those of its position alone. Beyond inputs and
    outputs the kernel takes 4 N Ds bytes of HBM for each core, and where the positions take several blocks at most
    64 MiB for each core more. An X of another dtype than its products is rounded once, to a copy; of a weight there is
    no copy. More than 65,536 positions are split here: parts take their turns in a loop of the device, with dW and db
    added up in float32 over them, in 4 V Ds bytes more unless dW is float32.

    A class that a bias of -inf masks in the student has a gradient of 0, but for beta 0 without a softcap, where it is
    -P, which is 0 if the teacher masks it too. One that is masked in the teacher alone has that of P = 0: finite for
    beta less than 1. Where KL(Q || P) is infinite, the gradient of its position is NaN or infinite, and that of weight
    and bias with it; with products in float16, all gradients are NaN. Launch as the forward.

    Dimensions:
        N: positions, that is tokens (1 to 2^31 - 1).
        Ds, Dt: features of student and teacher (16 to 16,384 each, together as many as fit SBUF).
        V: classes of both weights (1 to 2^24).

    Args:
        student_input_hbm, student_weight_hbm, teacher_input_hbm, teacher_weight_hbm, labels_hbm, student_bias_hbm,
            teacher_bias_hbm, row_weight_hbm, student_weight_layout, teacher_weight_layout, beta, temperature,
            ignore_index, student_logit_scale, teacher_logit_scale, student_logit_softcap, teacher_logit_softcap,
            first_class, num_classes, compute_dtype: as in the forward.
        moment_hbm, student_maximum_hbm, student_log_sum_hbm, teacher_maximum_hbm, teacher_log_sum_hbm: [N], float32, in
            HBM: from the forward; of a shard, those over all shards. The moment is not looked at for beta 0.
        grad_divergence_hbm: [N], float32, in HBM: gradient of each divergence, nats; that of an ignored position is not
            looked at.
        grad_logprob_hbm: [N], float32, in HBM: gradient of each log-probability of a label, likewise; None for 0.
        position_block: positions whose gradients of logits are on chip at a time, a multiple of 128; None: what
            ``choose_linear_distillation_tiling`` says.
        class_block: classes of a core that are worked on at a time, a multiple of 128; None likewise.
        grad_input_wanted, grad_weight_wanted: False saves the product, and the gradient is not returned.
        grad_bias_wanted: None stands for True with a student's bias.
        grad_weight_sum_hbm: float32, in the shape of student_weight_hbm, in HBM: dW is added to it in place, unrounded.
        grad_input_float32: return dX unrounded, for a shard of the vocabulary: it is a summand of that of all.

    Returns:
        Those that are wanted, in this order: grad_student_input [N, Ds] in the dtype of the input, or float32;
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
    sizes = backward_sizes(launch, upstream, grad_weight_sum_hbm is not None)
    tiling = validated_backward_tiling(launch, sizes, position_block, class_block)
    gradients = Gradients.of_launch(student, wanted, grad_weight_sum_hbm)
    backward_of_core(launch, upstream, sizes, tiling, gradients)
    return gradients.returned()
