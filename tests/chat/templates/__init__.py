"""Real templates: about seventy that llama.cpp's source package holds, fetched at test time."""
