"""The canonical encoding: one byte string for each value."""
