# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The simulated hardware: its generations, their limits, and the options in force."""
