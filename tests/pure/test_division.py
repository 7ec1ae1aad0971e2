"""How a Budget is divided: a byte is given out once, and nobody has less than its least where that fits."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdnn.plan.shared.division import Standing, divided, left_nbytes, persistent_of, smallest_budget

standings = st.builds(
    lambda kept, share: Standing("member", {}, kept_nbytes=kept, least_nbytes=int(kept * share)),
    st.integers(0, 10**12),
    st.floats(0, 1),
)


NUMBERS = count()


def member(persistent: int = 0, **of_steps: int) -> Standing:
    """With parameters of its own."""
    return Standing("member", {next(NUMBERS): persistent}, **of_steps)


def test_what_is_there_all_the_time_comes_off_first() -> None:
    assert left_nbytes(1000, [member(100), member(300)]) == 600


def test_a_parameter_of_two_members_counts_once() -> None:
    one, other = Standing("one", {1: 100, 2: 50}), Standing("other", {1: 100, 3: 70})
    assert persistent_of([one, other]) == 220


def test_without_a_least_it_goes_by_what_everything_kept_takes() -> None:
    assert divided(900, [member(kept_nbytes=1000), member(kept_nbytes=2000)]) == (300, 600)


def test_each_has_its_least_and_what_is_over_goes_by_what_more_it_would_take() -> None:
    assert divided(900, [member(kept_nbytes=1000, least_nbytes=600), member(kept_nbytes=2000)]) == (650, 250)


def test_where_everything_fits_everything_is_kept() -> None:
    rooms = divided(10_000, [member(kept_nbytes=1000, least_nbytes=10), member(kept_nbytes=2000)])
    assert rooms[0] >= 1000
    assert rooms[1] >= 2000


def test_members_of_which_nothing_is_known_have_equal_parts() -> None:
    assert divided(900, [member(), member(), member()]) == (300, 300, 300)


def test_where_not_even_the_least_fits_each_hears_what_the_others_leave() -> None:
    assert divided(900, [member(least_nbytes=600), member(least_nbytes=500)]) == (400, 300)


@given(left=st.integers(0, 10**12), together=st.lists(standings, min_size=1, max_size=6))
def test_a_byte_is_given_out_once(left: int, together: list[Standing]) -> None:
    rooms = divided(left, together)
    least = [each.least_nbytes for each in together]
    if sum(least) <= left:
        assert sum(rooms) <= left
        assert all(room >= each for room, each in zip(rooms, least, strict=True))
    else:
        assert all(room < each or room == 0 for room, each in zip(rooms, least, strict=True))


def test_the_smallest_budget_gives_each_what_it_is_known_to_work_with() -> None:
    asking, known = member(10, least_nbytes=500, kept_nbytes=900), member(20, least_nbytes=300, planned_nbytes=700)
    planned, elsewhere = member(30, planned_nbytes=400), member(40, planned_nbytes=800)
    together = [asking, known, planned]
    assert smallest_budget([*together, elsewhere], together, asking) == 100 + 500 + 300 + 400


def test_negative_bytes_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="negative"):
        Standing("member", {}, held_nbytes=-1)
