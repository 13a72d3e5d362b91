"""Index: which item lies where, in the artifacts that a data set has mapped."""
