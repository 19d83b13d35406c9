# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests of :mod:`nkilib.torch.lazy_logits`: logits that are computed only if something needs them."""
