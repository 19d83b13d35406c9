"""The derivatives of the operators."""

from __future__ import annotations

from typing import Final

from nkilib.torch.dispatch.autograd import differentiate
from nkilib.torch.functions.linear_token_scores.operators import BACKWARD, BACKWARD_ADDING, FORWARD

DERIVATIVE: Final = differentiate(FORWARD, BACKWARD, adding=BACKWARD_ADDING)
