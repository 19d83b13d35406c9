# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Programs that show the kernels at work. Start with ``python -m examples.demo``."""
