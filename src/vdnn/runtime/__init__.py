"""Running a plan: the executor, the handles that join backward to forward, and what is measured on the way."""
