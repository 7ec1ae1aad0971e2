"""The contract with PyTorch: every private name that vdnn uses is there, with the signature that we call.

One run lists all that is missing or has changed, so that a new release of torch is judged at once. What differs is
bridged in `torch_private.py`, and the table here says what each side is.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vdnn
from vdnn import torch_private

SOURCE = Path(vdnn.__file__).parent

CALLED = {
    "torch._dynamo.backends.common:aot_autograd": "**kwargs",
    "torch._dynamo.convert_frame:compile_lock": None,
    "torch._dynamo.exc:BackendCompilerFailed": None,
    "torch._dynamo.exc:TorchDynamoException": None,
    "torch._functorch._aot_autograd.collect_metadata_analysis:coerce_tangent_and_suggest_memory_format": "x",
    "torch._functorch._aot_autograd.descriptors:BufferAOTInput": "target",
    "torch._functorch._aot_autograd.descriptors:ParamAOTInput": "target",
    "torch._functorch._aot_autograd.descriptors:PlainAOTInput": "idx",
    "torch._functorch._aot_autograd.descriptors:SavedForBackwardsAOTOutput": "idx",
    "torch._functorch.aot_autograd:aot_compile_joint_with_descriptors": "jd, partition_fn, fw_compiler, bw_compiler",
    "torch._functorch.aot_autograd:aot_export_joint_with_descriptors": (
        "stack, mod, args, kwargs, keep_inference_input_mutations"
    ),
    "torch._guards:TracingContext": None,
    "torch._guards:tracing": "context",
    "torch._inductor.compile_fx:compile_fx_inner": "gm, example_inputs",
    "torch._inductor.compile_fx:select_decomp_table": "",
    "torch._inductor.exc:InductorError": None,
    "torch.fx.experimental.symbolic_shapes:GuardOnDataDependentSymNode": None,
    "torch._ops:HigherOrderOperator": None,
    "torch._ops:OpOverload": None,
    "torch._prims_common:is_non_overlapping_and_dense_or_false": "a",
    "torch._prims_common:make_contiguous_strides_for": "shape",
    "torch._subclasses:FakeTensor": None,
    "torch._subclasses:FakeTensorMode": None,
    "torch.fx.node:_side_effectful_functions": None,
    "torch.nn.utils.stateless:_reparametrize_module": "module, parameters_and_buffers, tie_weights",
    "torch.utils._python_dispatch:TorchDispatchMode": None,
    "torch.utils._python_dispatch:_disable_current_modes": "",
    "torch.utils._python_dispatch:_get_current_dispatch_mode_stack": "",
    "torch.utils._python_dispatch:_push_mode": "mode",
    "torch._dynamo.output_graph:GraphCompileReason": "reason, user_stack, graph_break",
    "torch.utils._python_dispatch:is_traceable_wrapper_subclass": "t",
    "torch.utils.checkpoint:_checkpoint_without_reentrant_generator": "fn, *args, **kwargs",
    "torch._dynamo.exc:unimplemented": "gb_type, context, explanation, hints",
    "torch._dynamo.utils:numpy_operator_wrapper": None,
    "torch.utils._pytree:tree_flatten": "tree",
    "torch.utils._pytree:tree_leaves": "tree",
    "torch.utils._pytree:tree_map": "func, tree",
    "torch.utils._pytree:tree_unflatten": "leaves, treespec",
}
"""By place, the parameters that we pass. None: it is no function, or is called without any."""

HELD = {
    "torch": "_grouped_mm _neg_view __version__ DispatchKey",
    "torch._C": """DisableTorchFunction _DisableAutocast _AutoDispatchBelowAutograd _DisableTorchDispatch
    _construct_storage_from_data_pointer _current_graph_task_id _get_privateuse1_backend_name _storage_Use_Count""",
    "torch._C._autograd": """_disable_profiler_legacy _enable_profiler_legacy _get_current_graph_task_keep_graph
        _top_saved_tensors_default_hooks""",
    "torch._C._functorch": "peek_interpreter_stack",
    "torch._C._profiler": "ProfilerConfig ProfilerState _ExperimentalConfig",
    "torch._dynamo": "reset_code mark_static_address",
    "torch._dynamo.config": """patch skip_nnmodule_hook_guards ignore_logging_functions optimize_ddp
        use_numpy_random_stream allow_rnn""",
    "torch._dynamo.external_utils": "is_compiling",
    "torch._dynamo.guards": "_get_closure_vars install_guard",
    "torch._dynamo.source": "GlobalStateSource",
    "torch._dynamo.symbolic_convert": "InstructionTranslatorBase",
    "torch._dynamo.trace_rules": "get_torch_obj_rule_map",
    "torch._dynamo.variables.higher_order_ops": "CheckpointHigherOrderVariable",
    "torch._dynamo.variables.misc": "NumpyVariable",
    "torch._dynamo.variables.tensor": "NumpyNdarrayVariable TensorVariable VariableTracker",
    "torch._dynamo.variables.torch": "TorchInGraphFunctionVariable tracing_state_functions",
    "torch._subclasses.functional_tensor": "FunctionalTensor FunctionalTensorMode",
    "torch._functorch.config": "patch backward_pass_autocast",
    "torch._utils": "is_compiling",
    "torch.autograd": "_profiler_enabled",
}
"""By module, names of functions in C and of settings, which have no signature to read."""


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


ATTRIBUTES: dict[str, tuple[Any, str]] = {
    "an op": (torch.ops.aten.add.Tensor, "_schema py_kernels _dispatch_cache"),
    "a schema": (torch.ops.aten.add.Tensor._schema, "arguments returns is_mutable name"),
    "a tensor": (torch.empty(1), "_version"),
    "a variable": (torch.autograd.Variable, "_execution_engine"),
    "the engine": (torch.autograd.Variable._execution_engine, "queue_callback"),
    "what a function of autograd leaves": (
        type(Doubled.apply(torch.ones(1, requires_grad=True)).grad_fn),
        "_forward_cls",
    ),
    "a storage": (torch.empty(1).untyped_storage(), "_cdata"),
    "what Dynamo traces with": (
        torch._dynamo.symbolic_convert.InstructionTranslatorBase,
        "dispatch_table pop push jump",
    ),
    "a tensor that Dynamo traces": (torch._dynamo.variables.TensorVariable, "bool_impl is_tensor as_proxy"),
    "a mark that Dynamo forbids": (torch._dynamo.mark_static_address, "_dynamo_forbidden"),
    "a function that Dynamo traces": (torch._dynamo.variables.torch.TorchInGraphFunctionVariable, "_get_handlers"),
    "FakeTensorMode": (torch_private.FakeTensorMode, "cache_clear _dispatch_impl"),
    "a module": (
        nn.Linear(1, 1),
        """_parameters _buffers _forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks _call_impl
        _compiled_call_impl""",
    ),
}


def complaints() -> list[str]:
    found = [line for place, wanted in CALLED.items() for line in complaints_of(place, wanted)]
    for module, names in HELD.items():
        found += [f"{module}.{name} is missing" for name in names.split() if not has(import_module_of(module), name)]
    for thing, (held, names) in ATTRIBUTES.items():
        found += [f"{thing} has no {name}" for name in names.split() if not hasattr(held, name)]
    return found


def complaints_of(place: str, wanted: str | None) -> list[str]:
    module, name = place.split(":")
    if not has(import_module_of(module), name):
        return [f"{module}.{name} is missing"]
    if wanted is None:
        return []
    signature = inspect.signature(getattr(import_module_of(module), name))
    missing = [one for one in wanted.split(", ") if one and one.lstrip("*") not in signature.parameters]
    needed = [p.name for p in signature.parameters.values() if p.default is p.empty and p.kind not in VARIABLE]
    surplus = [name for name in needed if name not in wanted.split(", ")]
    return [f"{module}.{name}{signature}: we pass {wanted or 'nothing'}"] if missing or surplus else []


VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def import_module_of(name: str) -> Any:
    """Also parts of `torch._C`, which are attributes and not all importable."""
    try:
        return import_module(name)
    except ImportError:
        found: Any = torch
        for part in name.split(".")[1:]:
            found = getattr(found, part, None)
        return found


def has(module: Any, name: str) -> bool:
    return module is not None and hasattr(module, name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor imports deprecated parts of PyTorch
def test_every_private_name_is_there_with_the_signature_we_call() -> None:
    found = complaints()
    assert not found, f"torch {torch.__version__} differs in {len(found)} of its private names:\n" + "\n".join(found)


def test_the_tables_name_everything_private_that_the_file_names() -> None:
    """Attributes and imports of `torch_private.py` that begin with an underscore, and all that it imports lazily."""
    named = " ".join([*CALLED, *HELD, *HELD.values(), *(names for _, names in ATTRIBUTES.values())])
    known = set(re.findall(r"\w+", named)) | {"_boxed_call"}  # that one is ours to set
    own = {"_getframe", "_dotted"}
    tree = ast.parse((SOURCE / "torch_private.py").read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {part for node in ast.walk(tree) if isinstance(node, ast.alias) for part in node.name.split(".")}
    private = {name for name in used if name.startswith("_") and not name.startswith("__")} | set(torch_private.HEAVY)
    assert private - own - known == set()


def test_no_other_file_names_anything_private_of_torch() -> None:
    imported = r"from torch[\w.]* import .*\b_|from torch[\w.]*\._"
    pattern = re.compile(rf"torch\._(?!_file__)|{imported}|\bsys\._getframe|currentframe")
    lines = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name != "torch_private.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not lines, "\n".join(lines)


def test_compilers_are_imported_when_they_are_asked_for() -> None:
    """Note: [Heavy names arrive on first use]"""
    code = (
        "import sys, vdnn.torch_private; sys.exit('torch._dynamo' in sys.modules or 'torch._inductor' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_release_that_is_newer_than_tested_warns_and_goes_on() -> None:
    with pytest.warns(UserWarning, match=r"tested with torch 2\.13 to 2\.15, and this is 2\.16\.0\+cpu: compare"):
        torch_private.warn_if_untested("2.16.0+cpu")
    for tested in ("2.13.0", "2.14.1+cpu", "2.15.0+cu132"):
        torch_private.warn_if_untested(tested)  # warnings are errors here
