"""Samples one after the other: of a sequence in shares, or of a stream, a chunk at a time."""
