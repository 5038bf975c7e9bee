"""rumormill wire protocol."""
