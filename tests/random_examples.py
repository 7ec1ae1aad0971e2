"""How many random examples a property is tried on: few in `make test`, many more in `make test-all`.

`@examples(40)` tries half of them in the first, and `MANY_TIMES` as many in the second, which asks for the profile
"many" and runs before every change is accepted.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

USUAL = 100
"""Examples of a profile that `examples` takes as one time; Hypothesis' own default."""
MANY_TIMES = 5

settings.register_profile("few", max_examples=USUAL // 2, deadline=None)
settings.register_profile("many", max_examples=USUAL * MANY_TIMES, deadline=None)
settings.load_profile("few")


def examples(count: int, **options: Any) -> settings:
    """`count` examples, times what the profile of this run asks for. No example is too slow: graphs grow op by op."""
    unchecked = [HealthCheck.too_slow, HealthCheck.data_too_large, *options.pop("suppress_health_check", ())]
    chosen = settings.get_current_profile_name()
    return settings(
        settings.get_profile(chosen),
        max_examples=count * settings.get_profile(chosen).max_examples // USUAL,
        suppress_health_check=unchecked,
        **options,
    )
