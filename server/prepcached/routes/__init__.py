"""The HTTP endpoints, one file for each noun.

Each file has one function that makes a router over what it is given; nothing here keeps state.
"""
