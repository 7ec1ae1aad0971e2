"""Plans as people read them: by storage, by instruction, in a few figures, beside others."""
