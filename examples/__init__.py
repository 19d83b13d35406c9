# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Programs that show the kernels at work. Start with ``python -m examples.demo``."""

from importlib.util import find_spec

if find_spec("rich") is None:
    raise ModuleNotFoundError(
        "examples: the programs print with rich, which is not installed; pip install '.[cli]' in the checkout"
    )
