"""The table of ops names ops, overloads, arguments and rules that exist."""

from __future__ import annotations

from vdnn.capture.ops.in_place_forms import IN_PLACE_OF, OUT_OF, OVER_SECOND, PART_OF
from vdnn.capture.ops.overloads import overload, overloads
from vdnn.compile.forms.analysis import RULES
from vdnn.compile.forms.rows import CHUNK_RULES
from vdnn.known_ops import KNOWN_OPS, known
from vdnn.known_ops.known_op import FromBits, KnownOp
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


def test_ops_that_are_laid_out_otherwise_than_traced_may_write_over_an_input() -> None:
    """Others with that fault are refused when a step is watched, so an entry for them would hide it."""
    strange = [op for op in KNOWN_OPS.values() if op.kernel_layout is not None]
    assert all(overload(op.name, "default") in OUT_OF for op in strange)


def test_of_an_op_without_an_entry_nothing_is_known() -> None:
    assert known("vdnn_made_this_up") == KnownOp("")
