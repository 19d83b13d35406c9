# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Runner of the steps: each process has a time limit, a report is written after each step, and a run can be resumed."""
