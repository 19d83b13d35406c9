# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The derivatives of the operators, computed by a second launch, or from gradients that the forward has returned
already.
"""

from __future__ import annotations

from typing import Final

from nkilib.torch.dispatch.autograd import differentiate
from nkilib.torch.dispatch.known_gradients import differentiate_by_results
from nkilib.torch.functions.linear_cross_entropy.operators import BACKWARD, BACKWARD_ADDING, FORWARD, WITH_GRADIENTS

DERIVATIVE: Final = differentiate(FORWARD, BACKWARD, adding=BACKWARD_ADDING)
differentiate_by_results(WITH_GRADIENTS)
