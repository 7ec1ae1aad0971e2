"""Virtual memory for neural-network training: name a number of bytes, change one line, train.

    model = vdnn.virtualize(model, budget="12GiB")                   # trains as before
    plan = vdnn.plan(model, args, budget="12GiB", hardware="titan-x")  # nothing is allocated
    print(vdnn.report(model))                                        # what the last step did, next to what was planned
    batch = vdnn.fit(make_model, make_args, budget="12GiB")          # the largest that trains within it
    both = vdnn.Budget("12GiB")                                      # for several models, as their budget=

`import vdnn` does not import torch: names arrive on first use, so that the planner and the command line's help start
quickly and the pure half works on a machine without torch.

Note: [Two names that are packages and functions]
`vdnn.plan` and `vdnn.report` are functions to a user and packages to the import system, which binds a subpackage to its
parent's attribute of that name whenever anything inside it is imported. A function put there would disappear at the
first `import vdnn.plan.judge.simulate`. So the package object stays, and its class gains a `__call__` that goes to
`vdnn.api`. Type checkers are shown the functions.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import vdnn.plan
import vdnn.report

if TYPE_CHECKING:
    from vdnn import models as models
    from vdnn.api import plan as plan
    from vdnn.api import report as report
    from vdnn.api import tensor_cache as tensor_cache
    from vdnn.api import virtualize as virtualize
    from vdnn.compile.fitting import fit as fit
    from vdnn.runtime.shared_budget import Budget as Budget

__version__ = "0.1.0"
__all__ = ["Budget", "__version__", "fit", "models", "plan", "report", "tensor_cache", "virtualize"]

_HOMES = {
    "Budget": "vdnn.runtime.shared_budget:Budget",
    "fit": "vdnn.compile.fitting:fit",
    "models": "vdnn.models",
    "tensor_cache": "vdnn.api:tensor_cache",
    "virtualize": "vdnn.api:virtualize",
}


class _CallablePackage(ModuleType):
    """Note: [Two names that are packages and functions]"""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self.__name__.rpartition(".")[2]
        return getattr(import_module("vdnn.api"), function)(*args, **kwargs)


for _package in (vdnn.plan, vdnn.report):
    _package.__class__ = _CallablePackage


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vdnn' has no attribute {name!r}: it has {', '.join(sorted(__all__))}")
    module, _, attribute = _HOMES[name].partition(":")
    home = import_module(module)
    return getattr(home, attribute) if attribute else home


def __dir__() -> list[str]:
    return sorted(__all__)
