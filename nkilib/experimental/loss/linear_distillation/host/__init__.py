# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code of distillation from hidden states: tilings, sizes, and guarantees of the kernels."""
