"""Keys: what an item, a config and a function are, as bytes that change exactly when they do."""
