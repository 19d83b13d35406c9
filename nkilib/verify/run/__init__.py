# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Running the steps: each process with a limit of time, a report after each step, and the way back into it."""
