"""The zoo: the networks of the four papers and the ones people use now, and the way in for a user's own.

`load("vgg16", 64, device="meta").step` is a training step that costs no memory; `MODELS` lists the specs. Imports
torch only.
"""

from vdnn.models.depth import Depth, depth_of
from vdnn.models.factory import UserFactory
from vdnn.models.registry import MODELS, load, make, names, resolve
from vdnn.models.spec import ModelSpec, Recipe, Workload

__all__ = [
    "MODELS",
    "Depth",
    "ModelSpec",
    "Recipe",
    "UserFactory",
    "Workload",
    "depth_of",
    "load",
    "make",
    "names",
    "resolve",
]
