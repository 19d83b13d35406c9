# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels: how they are launched, what goes in and what comes out."""
