"""Barrel Inference: GGUF models through llama.cpp, whose KV state is never computed twice. Public names only."""
