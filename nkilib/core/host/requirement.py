# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The release of a framework that a package of this library needs: one that is absent or too old is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Requirement:
    """A framework and its first release that fits.

    Attributes:
        package: of this library, for messages.
        framework: as it is imported.
        needed: major and minor number of the release.
        remedy: what to do.
    """

    package: str
    framework: str
    needed: tuple[int, int]
    remedy: str

    def check(self) -> None:
        """Refuse to go on without the framework, or with an older one.

        Raises:
            ImportError: with what is needed, what is there, and the remedy.
        """
        needed = f"{self.package}: needs {self.framework} {'.'.join(map(str, self.needed))} or later"
        try:
            found: Any = import_module(self.framework)
        except ModuleNotFoundError as error:
            if error.name != self.framework:
                raise
            raise ImportError(f"{needed}, and there is none; {self.remedy}", name=self.framework) from None
        version = str(found.__version__)
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < self.needed:  # 2.13.0a0+git is of 2.13
            raise ImportError(f"{needed}, got {version} in {found.__file__}; {self.remedy}", name=self.framework)
