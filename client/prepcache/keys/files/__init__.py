"""Digests of files and folders, remembered by their stamps."""
