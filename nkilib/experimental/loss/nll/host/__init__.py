# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of the negative log-likelihood loss: work, reference, bounds and guarantees; never traced."""
