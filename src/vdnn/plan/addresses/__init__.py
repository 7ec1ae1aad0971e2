"""Where bytes lie: places in one arena for everything that a step takes and gives back, and a check of them."""

from vdnn.plan.addresses.checked import collisions
from vdnn.plan.addresses.extents import Extent, Extents
from vdnn.plan.addresses.layout import Layout, TimedBlock, peak_of
from vdnn.plan.addresses.pack import pack
from vdnn.plan.addresses.planned_layout import blocks_of, planned_layout

__all__ = ["Extent", "Extents", "Layout", "TimedBlock", "blocks_of", "collisions", "pack", "peak_of", "planned_layout"]
