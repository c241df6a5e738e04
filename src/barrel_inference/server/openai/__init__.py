"""OpenAI's API: chat completions, completions, embeddings, models; ``responses`` has a folder of its own."""
