# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The second visit of the classes, which a divergence from a mixture needs."""
