# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The first visit of the classes: divergences of two distributions, and the inputs of the second visit of a mixture."""
