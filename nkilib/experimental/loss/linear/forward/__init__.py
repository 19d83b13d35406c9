# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Parts that the forwards of both linear losses share: plans, the pass over blocks of classes, and its streams."""
