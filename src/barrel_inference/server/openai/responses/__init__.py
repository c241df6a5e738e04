"""OpenAI's Responses API: items in and out, events, and a store in memory for ``previous_response_id``."""
