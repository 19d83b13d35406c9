"""What the tiles of the gradient of the student's logits take on chip and of a program, by the options of a launch."""

from __future__ import annotations

from nkilib.experimental.loss.linear.tile_needs import TileNeeds
from nkilib.experimental.loss.linear_distillation.host.pair_needs import PairNeeds

# Float32 columns of positions: what stays, and what they are computed from.
_COLUMNS = 14
# Tiles that an opened one keeps: the student's scores, and the teacher's or the differences of both.
_OPENED = 2


def opens_groups(needs: PairNeeds) -> bool:
    """Whether Scalar takes tangents or logs of mixtures, for which it loads another table than for exponentials."""
    return needs.mixed or needs.softcap


def copies_student(needs: PairNeeds) -> bool:
    """Whether the student's products are copied from PSUM.

    Vector reads one operand from there, and a bank is not kept for a tile that is opened long before it is made.
    """
    is_plain = not needs.student.bias and not needs.student.softcap
    return is_plain and (opens_groups(needs) or (takes_differences(needs) and teacher_is_plain(needs)))


def copies_teacher(needs: PairNeeds) -> bool:
    """Whether the teacher's products are copied from PSUM, likewise."""
    return teacher_is_plain(needs) and opens_groups(needs) and not takes_differences(needs)


def takes_differences(needs: PairNeeds) -> bool:
    """Whether the gradient needs the differences of both models' scores."""
    return needs.mixed or needs.reverse


def teacher_is_plain(needs: PairNeeds) -> bool:
    """Whether the teacher's scores are its products."""
    return not needs.teacher.bias and not needs.teacher.softcap


def gradient_needs(needs: PairNeeds) -> TileNeeds:
    """What the tiles of a launch take.

    Rings are those of biases, of tangents, of copies, of the differences or the teacher's exponentials, and of what a
    label takes.
    """
    models = sum(model.bias + model.softcap for model in needs.models)
    copies = copies_student(needs) + copies_teacher(needs)
    of_softcaps = sum(model.softcap * (1 + model.bias) for model in needs.models) + 2 * needs.student.softcap
    return TileNeeds(
        columns=_COLUMNS,
        rows=sum(model.bias for model in needs.models),
        rings=models + copies + 1 + needs.target,
        opened=_OPENED if opens_groups(needs) else 0,
        instructions=4 + needs.mixed + 3 * needs.target + copies + of_softcaps + sum(m.bias for m in needs.models),
    )
