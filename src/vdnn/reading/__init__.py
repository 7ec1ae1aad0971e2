"""Files that anybody may have written, read within bounds: plans, records, caches."""
