"""Rows of mapped artifacts to batches: gathered, collated, named by DataLoader workers."""
