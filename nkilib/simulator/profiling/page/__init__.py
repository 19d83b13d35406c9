# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A profile as one HTML file: timeline, source, on-chip memory and summary. Modelled, not measured.

- ``content``: everything that a page shows of a profile, as compact JSON;
- ``comparison``: compares two contents, by line of the kernel;
- ``fragments``: the parts of the page that are readable without a script: tables, and a picture of the timeline;
- ``writer``: writes the file, and reads the content of such a file.

``report.html``, ``report.css`` and ``report.js`` in this folder are the page; it loads nothing else.
"""
