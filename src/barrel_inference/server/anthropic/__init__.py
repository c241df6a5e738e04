"""Anthropic's API: messages, token counts, models."""
