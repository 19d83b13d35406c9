# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward of both linear losses, of which each makes the tiles of the gradient of its logits."""
