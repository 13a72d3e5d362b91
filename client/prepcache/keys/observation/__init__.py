"""What a function reads beside its item, seen while it runs: files, folders, modules, questions.

audit           the one audit hook: notes what Python's events tell, as facts of the watches in progress
context         watches: which item a thread works for, and the facts of that time
calls           what no event tells: questions (`os.path.exists`), imports by text, paths handed to C
findings        what the facts mean: a log of the function's inputs
observer        the log with the names of the inputs; bytes that were read and of which nothing told
naming          how inputs are named, so that the name leads another job to its own file
inputs          inputs of several processes put together, and checked at a look-up
"""
