# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Programs that show the kernels at work. Start with ``python -m examples.demo``."""

from importlib.util import find_spec

from nkilib.base.installation import extra_remedy

if find_spec("rich") is None:
    raise ModuleNotFoundError(f"examples: the programs print with rich, which is not installed; {extra_remedy('cli')}")
