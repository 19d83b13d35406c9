# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Times of the model in which every instruction stands where the kernel issues it, frozen."""
