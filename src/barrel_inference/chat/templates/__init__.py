"""Chat templates: rendering, its limits, what a template can express, and what stands in where a model has none."""
