"""What runs inside a worker process: the engine with its reader, intake and report threads around it."""
