"""Care of the tier directories, on the parent's side: no numpy, no llama.cpp, no model needed."""
