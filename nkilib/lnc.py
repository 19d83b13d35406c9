"""The path by which earlier releases named :mod:`nkilib.base.lnc`."""

from nkilib.base.lnc import *  # noqa: F403
