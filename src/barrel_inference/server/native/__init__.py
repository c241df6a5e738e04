"""Routes of our own, which no other server has: cache, tokens, registry housekeeping, health."""
