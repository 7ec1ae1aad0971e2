"""Plans that outlive the process: as JSON, as a saved plan that is followed, as a cache."""
