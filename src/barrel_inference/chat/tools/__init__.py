"""How models write tool calls: reading them, the grammar that makes them valid, learning an unknown syntax."""
