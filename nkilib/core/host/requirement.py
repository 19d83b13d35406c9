# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The check that a framework is installed in a release that a package of this library supports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Requirement:
    """A framework and its first release that this library supports.

    Attributes:
        package: the name of the package of this library, for messages.
        framework: the import name of the framework.
        needed: the major and minor number of that release.
        remedy: advice for the user, the last clause of the message.
    """

    package: str
    framework: str
    needed: tuple[int, int]
    remedy: str

    def check(self) -> None:
        """Check that the framework is installed and new enough.

        Raises:
            ImportError: the framework is missing or older; the message gives the needed release, the installed release,
                and the remedy.
        """
        needed = f"{self.package}: needs {self.framework} {'.'.join(map(str, self.needed))} or later"
        try:
            module: Any = import_module(self.framework)
        except ModuleNotFoundError as error:
            if error.name != self.framework:
                raise
            raise ImportError(f"{needed}, and there is none; {self.remedy}", name=self.framework) from None
        version = str(module.__version__)
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < self.needed:  # 2.13.0a0+git is of 2.13
            raise ImportError(f"{needed}, got {version} in {module.__file__}; {self.remedy}", name=self.framework)
