"""Between memory and files: what is found is read, what was captured is written, off the engine's thread."""
