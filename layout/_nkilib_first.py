# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Puts nkilib's directory ahead of the site-packages that it is installed into: run when Python starts.

AWS's Neuron compiler installs a package that is called nkilib too. Ours therefore has a directory of its own beside it,
`nkilib-packages`, or the checkout of an editable installation; a .pth file adds that directory to the import path, at
its end, and imports this module, which moves it. `NKILIB_FORCE_BUNDLED_LIBRARY`, by which AWS's package asks for
itself, leaves it at the end. What comes before site-packages, as PYTHONPATH does, stays there.
"""

import os
import sys

_TRUE = ("1", "true", "yes", "on")  # in any case, as AWS's package reads it


def _directory(site: str) -> str:
    of_editable = os.path.join(site, "_nkilib.pth")  # written by the build backend
    if not os.path.isfile(of_editable):
        return os.path.join(site, "nkilib-packages")
    with open(of_editable, encoding="utf-8") as paths:
        return paths.readline().strip()


def _put_first(site: str) -> None:
    """Move the directory to the place before `site`, where it stands behind it."""
    paths = [os.path.normcase(os.path.abspath(path)) for path in sys.path]
    own, behind = os.path.normcase(os.path.abspath(_directory(site))), os.path.normcase(site)
    if own in paths and behind in paths and paths.index(own) > paths.index(behind):
        directory = sys.path.pop(paths.index(own))
        sys.path.insert(paths.index(behind), directory)


if os.environ.get("NKILIB_FORCE_BUNDLED_LIBRARY", "").lower() not in _TRUE:
    _put_first(os.path.dirname(os.path.abspath(__file__)))
