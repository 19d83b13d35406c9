# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Replay of launches that run again: a plan has the instructions of a launch as a list of steps on arrays."""
