# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code that works on all public kernels of the library."""
