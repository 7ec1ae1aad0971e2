"""A convolution in less memory: in parts of the batch or of its channels, or its backward as two calls.

A convolution takes more than its arguments and its result: in the given layout oneDNN reorders images on the way in and
out, into buffers as large as they are, and its backward holds the input x, the gradient gy and the result gx at once.
Whoever works on a part at a time needs that room for a part only. The same idea is offered at three scales:

- one call in parts (`ways.py` names the ways, `compute.py` computes them, `traced.py` says which a traced op offers):
  the op keeps its place in the graph, and a plan chooses its variant by its measured cost;
- one backward as two calls (`split_backward.py`): after the weights' gradient x can go;
- whole stretches of a network in parts of the batch (`compile/forms/`, for which a convolution is one op among others:
  the rules `convolution` and `convolution_backward`).
"""
