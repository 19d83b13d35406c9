# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the forwards of both linear losses share: plans, the pass over blocks of classes, and what streams in it."""
