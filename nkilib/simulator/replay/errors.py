# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Why a launch with a key is not replayed: :class:`Unplannable`, :class:`ReplayFailed` and, of the planner's mistakes,
:class:`PlanError`. None of these errors reaches a user: the launch then runs as without replay.
"""

from __future__ import annotations


class Unplannable(Exception):
    """Error for a launch of which no plan can be made whose results are certainly bitwise identical."""


class PlanError(Exception):
    """Error for a mistake of the planner: its plan leaves other results or arguments than the launch."""


class ReplayFailed(Exception):
    """Error for a launch for whose values the plan is not valid, or that raises an error; nothing was changed."""
