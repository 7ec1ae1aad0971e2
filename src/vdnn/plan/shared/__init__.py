"""What several strategies do alike, and what is read off a finished plan."""
