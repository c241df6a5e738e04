"""One request's life in the worker: prepare → admission → generation → replay."""
