"""The table of ops names ops, overloads, arguments and rules that exist."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from formed import joint_of
from torch import nn

import vdnn
from vdnn.capture.ops.in_place_forms import IN_PLACE_OF, OUT_OF, OVER_SECOND, PART_OF
from vdnn.capture.ops.overloads import base_name, overloads
from vdnn.compile.forms.analysis import RULES
from vdnn.compile.forms.prepare import prepare
from vdnn.compile.forms.rows import CHUNK_RULES
from vdnn.ir import Information, Op, Phase
from vdnn.known_ops import KNOWN_OPS, known
from vdnn.known_ops.known_op import FromBits, KnownOp, LayerKind
from vdnn.plan.model.layers import kind_of
from vdnn.torch_private import OpOverload, schema_of


def argument_names(op: KnownOp) -> set[str]:
    return {argument.name for each in overloads(op.name) for argument in schema_of(each).arguments}


def named_arguments(op: KnownOp) -> set[str]:
    fixed = set() if callable(op.needs) else set(op.needs)
    left_out = {name for form in op.without_updates.values() for name in form.left_out}
    slope = {op.encoded.off} if isinstance(op.encoded, FromBits) and isinstance(op.encoded.off, str) else set()
    window = {"indices", "kernel_size"} if op.window_dims else set()
    return fixed | left_out | slope | window


def written(op: OpOverload) -> list[str]:
    return [argument.name for argument in schema_of(op).arguments if argument.alias_info is not None]


def test_every_entry_is_about_an_op_that_exists_and_says_something() -> None:
    assert [name for name, op in KNOWN_OPS.items() if not overloads(name) or op == KnownOp(name)] == []


def test_what_is_said_of_arguments_is_said_of_some_that_the_op_has() -> None:
    assert [name for name, op in KNOWN_OPS.items() if not named_arguments(op) <= argument_names(op)] == []


BOOLEANS = {"mask", "condition"}
ANY_CALL = defaultdict(float, output_mask=(True, True, True))


def without_detail(op: KnownOp) -> set[str]:
    """Arguments of which a part is needed and nothing says which: all of their values would be kept."""
    needs = op.needs(ANY_CALL) if callable(op.needs) else op.needs
    partial = {name for name, need in needs.items() if Information(need).is_partial}
    detailed = set(op.details(ANY_CALL)) if op.details is not None else set()
    return partial - detailed - BOOLEANS - ({"indices"} if op.window_dims else set())


def test_a_need_of_a_part_says_of_which_unless_it_is_a_booleans() -> None:
    assert {name: without_detail(op) for name, op in KNOWN_OPS.items() if without_detail(op)} == {}


def test_a_backward_from_bits_has_the_arguments_that_it_is_written_with() -> None:
    from_bits = [op for op in KNOWN_OPS.values() if isinstance(op.encoded, FromBits)]
    assert all({"self", "grad_output"} <= argument_names(op) for op in from_bits)
    assert all(form.argument == "grad_input" for op in from_bits for form in op.out.values())


def test_a_form_in_place_writes_into_its_first_argument_only() -> None:
    assert [op for op, form in IN_PLACE_OF.items() if written(form) != [schema_of(form).arguments[0].name]] == []


def test_an_out_form_writes_into_the_argument_that_is_named() -> None:
    assert [op for op, (form, name) in OUT_OF.items() if written(form) != [name]] == []


def test_nothing_overwrites_two_ways_that_could_disagree() -> None:
    assert not {*PART_OF, *OVER_SECOND} & {*IN_PLACE_OF, *OUT_OF}
    assert all(view.is_view for view in PART_OF.values())


def test_every_chunk_rule_is_named_by_an_op_and_every_op_names_one_that_exists() -> None:
    assert {op.chunks for op in KNOWN_OPS.values() if op.chunks} == CHUNK_RULES.keys()
    assert RULES["max_pool2d_with_indices"] is CHUNK_RULES["each_image"]


def test_of_an_op_without_an_entry_nothing_is_known() -> None:
    assert known("vdnn_made_this_up") == KnownOp("")


@torch.library.custom_op("vdnn_namesakes::mul", mutates_args=())
def namesake(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return self * other + 1


@namesake.register_fake
def _(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(self)


@torch.library.custom_op("vdnn_namesakes::mean", mutates_args=())
def namesake_of_mean(self: torch.Tensor) -> torch.Tensor:
    return self.sum()


@namesake_of_mean.register_fake
def _(self: torch.Tensor) -> torch.Tensor:
    return self.new_empty(())


namesake.register_autograd(
    lambda saved, gradient: tuple(namesake(gradient, factor) for factor in reversed(saved.saved_tensors)),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def test_nothing_is_known_of_an_op_of_another_library_that_has_a_known_name() -> None:
    assert known("mul").encoded is not None
    assert base_name(torch.ops.vdnn_namesakes.mul.default) == ""
    assert kind_of(Op("", "vdnn_namesakes.convolution.default", Phase.FORWARD, "", (), ())) is LayerKind.OTHER
    assert kind_of(Op("", "aten.convolution.default", Phase.FORWARD, "", (), ())) is LayerKind.CONV


def test_an_op_that_has_the_name_of_a_known_one_keeps_its_own_gradient() -> None:
    """Over dropout's noise, whose encoding a product of aten's would read."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 10))
    batch = torch.randn(512, 64)

    def loss(x: torch.Tensor) -> torch.Tensor:
        hidden = model[0](x)
        return model[1](namesake(hidden, torch.empty_like(hidden).bernoulli_(0.5).div_(0.5))).square().mean()

    def gradients(step: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        return list(torch.autograd.grad(step(batch), list(model.parameters())))

    plain = gradients(loss)
    assert all(map(torch.equal, plain, gradients(vdnn.virtualize(loss, sample=(batch,), strategy="gist"))))


def test_a_mean_of_another_library_is_not_written_as_a_sum() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return namesake_of_mean(x.detach()) + x.square().mean()

    with joint_of(loss, (torch.randn(16, 8, requires_grad=True),)) as joint:
        prepared = prepare(joint).joint.graph
    called = [node.target for node in prepared.nodes]
    assert torch.ops.vdnn_namesakes.mean.default in called
    assert torch.ops.aten.mean.default not in called
