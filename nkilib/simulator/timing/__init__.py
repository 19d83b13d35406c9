# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The model of time: the cost of instructions and the busy times of engines. Modelled, not measured."""
