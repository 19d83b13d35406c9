"""What the backward accepts beside what the forward does. Everything else is refused before anything is written."""

from __future__ import annotations

from nkilib.core.rows.checks import require, require_vector
from nkilib.experimental.loss.linear.backward_plan import BackwardSizes
from nkilib.experimental.loss.linear.sizes import LinearTiling
from nkilib.experimental.loss.linear.validation import validated_blocks
from nkilib.experimental.loss.linear_distillation.host.backward_tiling import backward_tiling
from nkilib.experimental.loss.linear_distillation.options import PairLaunch
from nkilib.experimental.loss.linear_distillation.pair_upstream import PairUpstream
from nkilib.nki import nisa, nl


def validate_pair_upstream(launch: PairLaunch, upstream: PairUpstream) -> None:
    """Refuse results of the forward and upstream gradients that are not a number for each position.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    for name, vector_hbm in (
        ("moment_hbm", upstream.moment_hbm),
        ("student_maximum_hbm", upstream.student.maximum_hbm),
        ("student_log_sum_hbm", upstream.student.log_sum_hbm),
        ("teacher_maximum_hbm", upstream.teacher.maximum_hbm),
        ("teacher_log_sum_hbm", upstream.teacher.log_sum_hbm),
        ("grad_divergence_hbm", upstream.grad_divergence_hbm),
        ("grad_logprob_hbm", upstream.grad_logprob_hbm),
    ):
        if vector_hbm is not None:
            require_vector(launch.function, name, vector_hbm, launch.num_positions, "the positions")
    require(
        upstream.grad_logprob_hbm is None or launch.labels_hbm is not None,
        f"{launch.function}: grad_logprob_hbm must be None without labels_hbm, got a tensor; pass the labels",
    )


def validated_backward_tiling(
    launch: PairLaunch, sizes: BackwardSizes, position_block: int | None, class_block: int | None
) -> LinearTiling:
    """The tiling that is asked for; None in it stands for what is chosen.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    target = "trn2" if nisa.get_nc_version() == nisa.nc_version.gen3 else "trn3"
    try:
        chosen = backward_tiling(sizes, nl.num_programs(), target)
    except ValueError:
        student, teacher = launch.models
        require(
            position_block is not None and class_block is not None,
            f"{launch.function}: student_input_hbm and teacher_input_hbm must have so few features that tiles of both "
            f"models fit SBUF, got {student.num_features} in {student.dtype} and {teacher.num_features} in "
            f"{teacher.dtype}; pass compute_dtype=nl.bfloat16",
        )
        # Blocks that are asked for are refused where they do not fit, with what they take.
        chosen = LinearTiling(nl.tile_size.pmax, nl.tile_size.pmax)
    return validated_blocks(launch.function, chosen, position_block, class_block, "choose_linear_distillation_tiling")
