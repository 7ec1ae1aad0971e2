"""Strategies: who decides. One published policy per file, one signature, and a declaration of what it can do.

Enters: a problem. Leaves: a plan. A strategy may decline with `Infeasible`; it may not be wrong, which `validate.check`
sees to. `strategy.py` says what a declaration holds, `plan/strategy_table.py` finds strategies by name. `auto` and its
yardstick `greedy`, which build on these, are in `plan/auto/`.
"""
