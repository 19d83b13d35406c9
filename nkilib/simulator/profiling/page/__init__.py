# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A profile as one HTML file to look at: timeline, source, on-chip memory and summary. Modelled, not measured.

- ``content``: all that a page shows of a profile, as JSON in little room;
- ``comparison``: two contents beside each other, by line of the kernel;
- ``fragments``: the parts of the page that are readable without a script: tables, and a picture of the timeline;
- ``writer``: the file, and the content that another such file holds.

``report.html``, ``report.css`` and ``report.js`` beside them are the page; nothing else is loaded.
"""
