"""A graph module as those see it who only ask what enters and what leaves.

Enters: a module whose program has been written out. Leaves: the same module without its calls. AOTAutograd holds the
backward that it was given for as long as the step may run, copies it in the middle of the first one, and reads of it
its placeholders and which of its results are None.
"""

from __future__ import annotations

from typing import Any

from torch import fx


def outline_of(module: fx.GraphModule) -> fx.GraphModule:
    """Without its calls; any placeholder stands for each result."""
    graph = module.graph
    placeholders, output = graph.find_nodes(op="placeholder"), graph.output_node()
    if not placeholders:
        return module
    results: Any = output.args[0]
    output.args = (tuple(None if result is None else placeholders[0] for result in results),)
    for node in reversed(graph.nodes):
        if node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    module.recompile()
    return module
