# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Of both linear losses, for host code: how launches are cut up, output layers in float64, errors of their products."""
