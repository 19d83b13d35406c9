# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``vocab_parallel_cross_entropy``: the loss of an output layer whose classes are spread over processes."""
