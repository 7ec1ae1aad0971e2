"""Plan + joint graph → the forward and backward programs that run."""
