# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Reasons why a launch is not replayed. None of these errors reaches a user: the launch then runs as it always did."""

from __future__ import annotations


class Unplannable(Exception):
    """Error for a launch of which no plan can be made whose results are certain to be bitwise identical."""


class PlanError(Exception):
    """Error for a mistake of the planner: its plan does not leave what the launch has left."""


class ReplayFailed(Exception):
    """Error for a launch with other values than the plan was made for, or one that raises; nothing was changed."""
