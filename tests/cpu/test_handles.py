"""A handle finds its object for exactly as long as its memory lives."""

from __future__ import annotations

import threading

import pytest
import torch
from equivalence import without_garbage_collection

from vdnn.runtime.handles import Handles


class Thing:
    """Something that a forward pass leaves for its backward."""


@pytest.fixture
def handles() -> Handles:
    return Handles()


def test_a_handle_finds_its_object(handles: Handles) -> None:
    thing = Thing()
    handle = handles.issue(thing)
    assert handles.redeem(handle) is thing


def test_two_handles_find_their_own_objects(handles: Handles) -> None:
    things = [Thing(), Thing()]
    issued = [handles.issue(thing) for thing in things]
    assert [handles.redeem(handle) for handle in issued] == things


def test_the_object_is_forgotten_with_the_last_tensor_that_shares_the_memory(handles: Handles) -> None:
    before = handles.num_alive
    with without_garbage_collection():
        handle = handles.issue(Thing())
        view = handle.view(1, 2)
        del handle
        assert handles.num_alive == before + 1
        del view
        assert handles.num_alive == before


def test_a_copy_of_a_handle_does_not_keep_the_object(handles: Handles) -> None:
    """Note [Cloned handles] in vdnn/runtime/handles.py"""
    handle = handles.issue(Thing())
    copy = handle.clone()
    assert handles.redeem(copy) is not None
    del handle
    assert handles.redeem(copy) is None


def test_a_handle_works_in_another_thread(handles: Handles) -> None:
    thing, found = Thing(), []
    handle = handles.issue(thing)
    thread = threading.Thread(target=lambda: found.append(handles.redeem(handle)))
    thread.start()
    thread.join()
    assert found == [thing]


def test_a_handle_is_one_small_tensor(handles: Handles) -> None:
    handle = handles.issue(Thing())
    assert (handle.dtype, handle.shape) == (torch.int64, (2,))
