"""The zoo: the networks of the four papers and the ones people use now, and the way in for a user's own.

`load("vgg16", 64, device="meta").step` is a training step that costs no memory; `MODELS` lists the specs. Imports
torch only.
"""

from vdnn.models.factory import UserFactory
from vdnn.models.registry import MODELS, load, names, resolve
from vdnn.models.spec import ModelSpec, Recipe, Workload

__all__ = ["MODELS", "ModelSpec", "Recipe", "UserFactory", "Workload", "load", "names", "resolve"]
