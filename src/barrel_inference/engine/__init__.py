"""What runs inside a worker: the step, the requests, the backends and the engine's side of the KV store."""
