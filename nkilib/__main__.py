# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``python -m nkilib``; see :mod:`nkilib.cli`."""

from nkilib.cli.main import run

if __name__ == "__main__":
    raise SystemExit(run())
