# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Takes the place of PyTorch, which takes seconds to load, where only matters that a package of the name is there."""
