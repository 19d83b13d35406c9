# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward of both linear losses; each loss computes the tiles of the gradient of its logits."""
