# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The errors for launches that have a key and are not replayed.

They are :class:`Unplannable`, :class:`ReplayFailed` and, for faults of the planner, :class:`PlanError`. None of them
reaches a user: the launch then runs without replay.
"""

from __future__ import annotations


class Unplannable(Exception):
    """Error for a launch of which no plan can be made that certainly gives bitwise identical results."""


class PlanError(Exception):
    """Error for a fault of the planner: its plan gives other results, or leaves other arguments, than the launch."""


class ReplayFailed(Exception):
    """Error for a plan that cannot run a launch: it is not valid for the launch's values, or a step raises an error.
    The arguments are then as before.
    """
