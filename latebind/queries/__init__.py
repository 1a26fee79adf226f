"""Queries: graphs of models under one deadline, replanned as steps save time (GATI, sections 5.1 and 5.2). Pure.

A new planner is one class and one line here.
"""

from collections.abc import Callable

from latebind.queries.expected import Expected
from latebind.queries.planners import Equal, Planner, Proportional

# Each query has its own.
PLANNERS: dict[str, Callable[[], Planner]] = {"equal": Equal, "proportional": Proportional, "expected": Expected}
