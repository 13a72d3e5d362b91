"""Data: the data set, the fill that makes its samples, and the batches that are gathered from them."""
