"""Conversations: messages and tools to a prompt (``dialogue``), and the model's text back to an answer (``output``)."""
