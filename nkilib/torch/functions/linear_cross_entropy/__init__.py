# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``linear_cross_entropy`` and ``LinearCrossEntropyLoss``: output layer and loss together, without logits in memory."""
