# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests of nkilib.torch.functions.softmax."""
