"""Which model serves a request: names to files, loading once, keeping alive, queueing, making room."""
