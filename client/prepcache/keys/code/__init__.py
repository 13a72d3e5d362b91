"""What counts of the code: loaded code objects, what their names mean, and the files that are imported."""
