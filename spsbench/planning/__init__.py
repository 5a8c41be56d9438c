"""Plans: measured costs and traces, predictions from them, and a recommendation.

Stands on `benchmark` (texts and real rounds are runs). Read `plan` (the call), `planner` (its
steps), `candidates`, `measure` (costs), then `report`; `forecast` has the arithmetic.
"""
