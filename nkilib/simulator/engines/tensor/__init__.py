# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions of the Tensor engine."""
