# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The parser that all commands use, which prints short errors."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser that prints an error and names ``--help``, where argparse prints the usage, which has 20 lines here."""

    def error(self, message: str) -> NoReturn:
        """Print the error on stderr and end the process with 2.

        Raises:
            SystemExit: always.
        """
        self.exit(2, f"{self.prog}: error: {message}\nsee `{self.prog} --help`\n")
