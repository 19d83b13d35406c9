# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches that run again: what the instructions of a launch do, as a list of steps on arrays."""
