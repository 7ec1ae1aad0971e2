"""A tidy graph says what eager PyTorch does: statistics in place, two clean phases, views taken where they are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captured import graph_of, only_op, ops_of, storages_read, storages_written
from nets import ConvNet, Using, images, rows
from torch import Tensor, nn

from vdnn.ir import Phase, Role, Trait


@pytest.fixture(scope="module")
def convnet() -> Any:
    return graph_of(ConvNet(), images())


def test_batch_norm_updates_its_statistics_in_place(convnet: Any) -> None:
    norm = only_op(convnet, "_native_batch_norm_legit")
    written = {convnet.storages[storage].name for storage in storages_written(convnet, norm)}
    assert {"norm.running_mean", "norm.running_var"} <= written
    assert norm.has(Trait.IN_PLACE)


def test_no_statistic_is_copied(convnet: Any) -> None:
    assert ops_of(convnet, "copy_") == []
    assert ops_of(convnet, "clone") == []


def test_the_batch_counter_is_counted_in_place(convnet: Any) -> None:
    counter = only_op(convnet, "add_")
    assert [convnet.storages[s].name for s in storages_written(convnet, counter)] == ["norm.num_batches_tracked"]


def test_backward_reads_nothing_of_the_running_statistics(convnet: Any) -> None:
    read = {s for op in convnet.ops[convnet.num_forward :] for s in storages_read(convnet, op)}
    assert not {"norm.running_mean", "norm.running_var"} & {convnet.storages[s].name for s in read}


def test_backward_in_eval_mode_reads_the_running_statistics_and_no_others() -> None:
    graph = graph_of(ConvNet().eval(), images())
    read = {graph.storages[s].name for s in storages_read(graph, only_op(graph, "native_batch_norm_backward"))}
    assert {"norm.running_mean", "norm.running_var"} <= read


def test_statistics_that_are_updated_twice_are_copied_so_that_both_updates_count() -> None:
    model = Using(lambda self, x: self.norm(self.norm(x)), norm=nn.BatchNorm2d(3))
    assert len(ops_of(graph_of(model, images()), "copy_")) >= 2


def test_every_forward_op_stands_before_every_backward_op(convnet: Any) -> None:
    phases = [op.phase for op in convnet.ops]
    assert phases == sorted(phases, key=[Phase.FORWARD, Phase.BACKWARD].index)
    assert len(set(phases)) == 2


def test_writes_into_inputs_belong_to_the_forward() -> None:
    model = Using(lambda self, x: (self.a(x), self.buffer.copy_(x.mean(0)))[0], a=nn.Linear(4, 4), buffer=torch.ones(4))
    assert only_op(graph_of(model, rows()), "copy_").phase is Phase.FORWARD


def test_nothing_is_detached() -> None:
    model = Using(lambda self, x: self.a(x).sigmoid().exp().sum(), a=nn.Linear(4, 4))
    graph = graph_of(model, rows())
    assert ops_of(graph, "detach") + ops_of(graph, "alias") == []


def flattened(self: Any, x: Tensor) -> Tensor:
    return self.b(self.a(x).view(-1, 2)).sum()


def test_a_view_that_both_phases_read_is_taken_in_each() -> None:
    model = Using(flattened, a=nn.Linear(4, 4), b=nn.Linear(2, 2))
    graph = graph_of(model, rows())
    hidden = graph.values[ops_of(graph, "addmm")[0].writes[0]].storage
    views = [op for op in graph.ops if op.has(Trait.VIEW) and storages_read(graph, op) == [hidden]]
    assert {op.phase for op in views} == {Phase.FORWARD, Phase.BACKWARD}


def test_a_view_that_only_backward_reads_is_taken_there_alone() -> None:
    # The transposed weight that a linear layer's input gradient needs.
    graph = graph_of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), rows())
    for op in graph.ops[: graph.num_forward]:
        if op.has(Trait.VIEW):
            (value,) = op.writes
            readers = [o for o in graph.ops[: graph.num_forward] if value in [read.value for read in o.reads]]
            assert readers or value in graph.held


def test_dropout_draws_and_scales_its_noise_in_one_storage() -> None:
    graph = graph_of(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)), rows())
    drawn, scaled = (storages_written(graph, only_op(graph, name)) for name in ("bernoulli_", "div_"))
    assert list(drawn) == list(scaled)
    (noise,) = drawn
    assert noise in graph.stashed


def test_gradients_that_nobody_asked_for_are_not_made() -> None:
    graph = graph_of(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4)), rows())
    backward = only_op(graph, "native_batch_norm_backward")
    roles = [graph.storages[storage].role for storage in storages_written(graph, backward)]
    assert roles == [Role.GRADIENT, Role.GRADIENT]
