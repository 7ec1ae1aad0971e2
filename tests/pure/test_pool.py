"""The pool's state machine and account, and the order and policies of the tensor cache: all without torch."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdnn.eager.policies import LRU, NEXT_USE, check_policy, leaving_order
from vdnn.eager.use_order import NEVER, Follower, Order
from vdnn.errors import InvalidInput
from vdnn.runtime.pool.accounts import UNREAD_NOTES, Accounts
from vdnn.runtime.pool.states import ALLOWED, ON_DEVICE, State, change

HERE, ENCODED, LEAVING, AWAY, COMING, GONE = State
CHANGES = {
    (HERE, ENCODED),
    (HERE, LEAVING),
    (ENCODED, HERE),
    (ENCODED, LEAVING),
    (LEAVING, HERE),
    (LEAVING, ENCODED),
    (LEAVING, AWAY),
    (AWAY, COMING),
    (COMING, HERE),
    (COMING, ENCODED),
    *((state, GONE) for state in State if state is not GONE),
}


@pytest.mark.parametrize(("before", "after"), list(product(State, State)), ids=lambda state: state.value)
def test_a_change_happens_exactly_if_it_is_one_of_the_fifteen(before: State, after: State) -> None:
    if (before, after) in CHANGES:
        assert change(before, after) is after
    else:
        with pytest.raises(AssertionError, match=f"{before.value} cannot become {after.value}"):
            change(before, after)


def test_every_state_but_the_last_can_reach_every_other() -> None:
    for start in set(State) - {GONE}:
        reached = {start}
        for _ in State:
            reached |= {after for before in reached for after in ALLOWED[before]}
        assert reached == set(State)


def test_what_is_away_or_gone_takes_no_memory_of_the_device() -> None:
    assert set(State) - ON_DEVICE == {AWAY, GONE}


walks = st.lists(st.tuples(st.integers(1, 100), st.lists(st.sampled_from(list(State)), max_size=8)), max_size=6)


@given(walks)
def test_an_account_knows_where_every_byte_is(walks: list[tuple[int, list[State]]]) -> None:
    accounts, where = Accounts(), []
    for nbytes, wishes in walks:
        state = HERE
        accounts.note(None, 0, HERE, nbytes)
        for wish in wishes:
            if wish in ALLOWED[state]:
                accounts.note(state, nbytes, wish, nbytes)
                state = wish
        where.append((state, nbytes))
    for state in State:
        assert accounts.nbytes(state) == sum(nbytes for place, nbytes in where if place is state)
        assert accounts.num(state) == sum(place is state for place, _ in where)
    assert accounts.device_nbytes == sum(nbytes for place, nbytes in where if place in ON_DEVICE)


def test_notes_that_nobody_asks_about_do_not_pile_up() -> None:
    accounts = Accounts()
    for _ in range(3 * UNREAD_NOTES):
        accounts.note(None, 0, HERE, 1)
    assert len(accounts._notes) <= UNREAD_NOTES
    assert accounts.nbytes(HERE) == 3 * UNREAD_NOTES


PALINDROME = Order([4, 8, 16], [2, 1, 0])


def test_a_step_that_does_what_the_last_one_did_knows_its_next_uses() -> None:
    follower = Follower(PALINDROME)
    assert [follower.save(nbytes) for nbytes in (4, 8, 16)] == [0, 1, 2]
    assert [follower.next_use(ordinal) for ordinal in (0, 1, 2)] == [2, 1, 0]
    follower.ask(2)
    assert [follower.next_use(ordinal) for ordinal in (0, 1, 2)] == [1, 0, NEVER]
    assert list(follower.upcoming(2)) == [1, 0]


def test_a_storage_that_is_asked_for_twice_has_two_next_uses() -> None:
    follower = Follower(Order([4, 8], [0, 1, 0]))
    assert follower.next_use(0) == 0
    follower.ask(0)
    assert follower.next_use(0) == 1


@pytest.mark.parametrize("sizes", [[4, 9], [4, 8, 16, 32]], ids=["another size", "one more"])
def test_a_step_that_saves_something_else_follows_no_longer(sizes: list[int]) -> None:
    follower = Follower(PALINDROME)
    for nbytes in sizes:
        follower.save(nbytes)
    assert not follower.follows
    assert list(follower.upcoming(3)) == [2, 1, 0]


def test_a_step_that_asks_in_another_order_follows_no_longer() -> None:
    follower = Follower(PALINDROME)
    follower.ask(2)
    assert follower.follows
    follower.ask(0)
    assert not follower.follows


@pytest.mark.parametrize("known", [None, Order()], ids=["no step", "a step that saved nothing"])
def test_without_a_known_order_nothing_is_followed(known: Order | None) -> None:
    assert not Follower(known).follows


def test_what_a_step_did_is_the_known_order_of_the_next() -> None:
    first = Follower()
    for nbytes in PALINDROME.saved_nbytes:
        first.save(nbytes)
    for ordinal in PALINDROME.asked:
        first.ask(ordinal)
    assert first.order == PALINDROME


def test_lru_leaves_in_the_order_of_use_whatever_is_known() -> None:
    assert leaving_order(LRU, ["old", "new"], {"old": 1.0, "new": 5.0}.__getitem__) == ["old", "new"]


def test_next_use_lets_the_one_leave_that_is_asked_for_latest() -> None:
    uses = {"a": 1.0, "b": NEVER, "c": 7.0}
    assert leaving_order(NEXT_USE, list(uses), uses.__getitem__) == ["b", "c", "a"]


def test_next_use_is_lru_among_equals_and_where_nothing_is_known() -> None:
    assert leaving_order(NEXT_USE, ["old", "new"], lambda _: NEVER) == ["old", "new"]
    assert leaving_order(NEXT_USE, ["old", "new"], None) == ["old", "new"]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 4))
def test_next_use_never_misses_more_often_than_lru(requests: list[int], capacity: int) -> None:
    """Belady's theorem, on the caches that these two functions make."""
    assert misses(NEXT_USE, requests, capacity) <= misses(LRU, requests, capacity)


def misses(policy: str, requests: list[int], capacity: int) -> int:
    follower, held, num_misses = Follower(Order([0] * 6, requests)), list[int](), 0
    for ordinal in requests:
        if ordinal in held:
            held.remove(ordinal)
        else:
            num_misses += 1
            if len(held) == capacity:
                held.remove(leaving_order(policy, held, follower.next_use)[0])
        held.append(ordinal)
        follower.ask(ordinal)
    return num_misses


def test_a_policy_that_does_not_exist_says_which_do() -> None:
    with pytest.raises(InvalidInput, match="one of lru, next-use, not 'fifo'"):
        check_policy("fifo")
