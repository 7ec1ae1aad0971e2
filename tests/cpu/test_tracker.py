"""The storage tracker: live bytes by role, exact to the byte, while real code runs."""

from __future__ import annotations

import weakref

import pytest
import torch
from equivalence import without_garbage_collection

from vdnn.ir import Role
from vdnn.plan.model.timeline import ROLES
from vdnn.runtime.tracker import StorageTracker

pytestmark = pytest.mark.any_device


def live(tracker: StorageTracker) -> dict[Role, int]:
    return {role: int(nbytes) for role, nbytes in zip(ROLES, tracker.live, strict=True) if nbytes}


def test_results_of_ops_are_counted_and_uncounted() -> None:
    tracker = StorageTracker()
    with without_garbage_collection(), tracker:
        tensor = torch.ones(100)
        assert live(tracker) == {Role.FEATURE_MAP: 400}
        del tensor
        assert live(tracker) == {}


def test_views_and_in_place_results_are_the_storage_they_share() -> None:
    tracker = StorageTracker()
    with tracker:
        tensor = torch.ones(10, 10)
        views = [tensor.t(), tensor[3:], tensor.add_(1), tensor.detach()]
        assert live(tracker) == {Role.FEATURE_MAP: 400}
        del tensor
        assert live(tracker) == {Role.FEATURE_MAP: 400}
    assert len(views) == 4


def test_a_view_of_something_uncounted_counts_its_whole_storage() -> None:
    tracker, tensor = StorageTracker(), torch.ones(10, 10)
    with tracker:
        row = tensor[0]
        assert live(tracker) == {Role.FEATURE_MAP: 400}
    assert row.numel() == 10


def test_what_exists_already_is_counted_once_under_the_role_it_is_given_first() -> None:
    tracker, weight = StorageTracker(), torch.ones(100)
    tracker.count_all([weight, "no tensor", None, weight.view(10, 10)], Role.PARAMETER)
    tracker.count(weight, Role.INPUT)
    assert live(tracker) == {Role.PARAMETER: 400}


def test_results_get_the_role_that_the_owner_gives_their_position() -> None:
    tracker = StorageTracker(lambda position: (Role.OUTPUT, Role.GRADIENT)[position])
    with tracker:
        values, places = torch.ones(4, 4).max(0)
    assert values.shape == places.shape
    assert live(tracker) == {Role.OUTPUT: 16, Role.GRADIENT: 32}


def test_settle_gives_the_fullest_moment_since_the_last_call() -> None:
    tracker = StorageTracker()
    with without_garbage_collection(), tracker:
        kept = torch.ones(10)
        passing = torch.ones(100)
        del passing
        assert int(tracker.settle().sum()) == 440
        assert int(tracker.settle().sum()) == 40
    assert tracker.peak_nbytes == 440
    assert kept.numel() == 10


def test_a_closed_tracker_counts_no_more_and_is_kept_by_nothing() -> None:
    tracker, weight = StorageTracker(), torch.ones(100)
    tracker.count(weight, Role.PARAMETER)
    tracker.close()
    gone = weakref.ref(tracker)
    with without_garbage_collection():
        del tracker
        assert gone() is None


def test_an_open_tracker_lives_as_long_as_what_it_counts() -> None:
    """Why `close` exists: the finalizer of a long-lived storage holds the tracker."""
    tracker, weight = StorageTracker(), torch.ones(100)
    tracker.count(weight, Role.PARAMETER)
    gone = weakref.ref(tracker)
    del tracker
    assert gone() is not None
    del weight
    assert gone() is None
