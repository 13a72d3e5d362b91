"""Samples one after the other, of items that are read and prepared a chunk at a time."""
