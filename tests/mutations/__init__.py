"""What is taken away, one module for each part of the code."""
