"""What a function reads beside its item, seen while it runs: files, folders, modules, questions.

audit           the one audit hook: notes what Python's events tell, as facts of the watches in progress
context         watches: which item a thread works for
calls           what no event tells: questions (`os.path.exists`), imports by text, paths handed to C
unseen          bytes that were read and of which nothing told
findings        what the facts mean: inputs and outputs of the function
observer        all that was seen of one function, as rows
inputs          observed inputs as rows: put together from several processes, and checked at a look-up
naming          how they are named, so that the name leads another job to its own file
"""
