"""The endpoints of DESIGN 9, one file for each noun.

Each file has one function that makes a router over what it is given; nothing here keeps state.
"""
