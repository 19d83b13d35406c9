# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Host code that the public functions of every framework share. It needs none of the frameworks and is never traced.

- ``options``: options as fields of a dataclass, as keywords of public functions, and reductions;
- ``sizes``: checks of the sizes and types that are passed to functions that choose tilings;
- ``loss``: the registry entry of a loss, stated as data, and the launches that follow from it;
- ``error_bounds``: how a reference value states its accepted error;
- ``launchable``: a kernel that is launched on its own, and its plain function;
- ``lazy_names``: packages whose modules are loaded when one of their names is first used;
- ``requirement``: the release of a framework that a package needs.
"""
