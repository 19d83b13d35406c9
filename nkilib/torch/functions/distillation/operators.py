"""The operators ``torch.ops.nkilib.distillation_*``, described, and their derivative.

Rows are positions: logits [N, V], labels [N]. Reductions and shapes are in :mod:`.functional`.
"""

from __future__ import annotations

from typing import Final

from nkilib.experimental.loss.distillation import distillation_backward, distillation_forward
from nkilib.experimental.loss.distillation.options import DistillationOptions
from nkilib.torch.dispatch.autograd import differentiate
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.losses import FLOAT_DTYPES
from nkilib.torch.dispatch.operator import Input, Operator, Output, as_first
from nkilib.torch.dispatch.register import register

DISTILLATION: Final = Caller("distillation_loss", "student_logits", "logits", "torch.nn.functional.kl_div")

_LOGITS: Final = (
    Input("student", dimensions=2, dtypes=FLOAT_DTYPES),
    Input("teacher", dimensions=2, dtypes=FLOAT_DTYPES),
)
_LABELS: Final = Input("labels", is_optional=True)
# Of both distributions: minus the shift, and the sum of the exponentials under it.
_SAVED: Final = ("moment", "student_shift", "student_sum", "teacher_shift", "teacher_sum")

FORWARD: Final = register(
    Operator(
        "distillation_forward",
        inputs=(*_LOGITS, _LABELS),
        options=(DistillationOptions,),
        outputs=(Output("loss", depends_on=("student",)), *(Output(name) for name in _SAVED)),
        kernel=distillation_forward,
        instead=DISTILLATION.instead,
    )
)

BACKWARD: Final = register(
    Operator(
        "distillation_backward",
        inputs=(*_LOGITS, *(Input(name) for name in _SAVED), Input("grad_loss"), _LABELS),
        options=(DistillationOptions,),
        outputs=(Output("grad_student", None, as_first),),
        kernel=distillation_backward,
        may_overwrite=True,
        instead=DISTILLATION.instead,
    )
)

DERIVATIVE: Final = differentiate(FORWARD, BACKWARD)
