# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of the logits of linear cross-entropy and of token scores."""
