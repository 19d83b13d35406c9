# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The model of time: what instructions cost, and when engines are busy. Modelled, not measured."""
