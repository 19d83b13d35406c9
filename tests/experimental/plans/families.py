"""All families whose plans are covered, by name."""

from __future__ import annotations

from tests.experimental.plans.coverage import PlanFamily

FAMILIES: dict[str, PlanFamily] = {family.name: family for family in ()}
