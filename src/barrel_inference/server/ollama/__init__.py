"""Ollama's API: its JSON, translated to neutral values and back."""
