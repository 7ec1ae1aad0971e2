"""What plans are made of: the problem, the actions, the plan, and what follows from a graph alone."""
