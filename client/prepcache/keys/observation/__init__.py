"""What a function reads beside its item, seen while it runs: files, folders, modules, questions.

audit           the one audit hook: notes what Python's events tell, as facts of the watches in progress
context         watches: which item a thread works for
monitoring      what is asked for and may not be there (`os.path.exists`), and imports by a computed name
native_reads    paths that the job's code hands to C libraries (Python >= 3.12)
unseen          bytes that were read and of which nothing told
job_code        which code is the job's
findings        what the facts mean: inputs and outputs of the function
observer        all that was seen of one function, as rows
inputs          observed inputs as rows: put together from several processes, and checked at a look-up
naming          how they are named, so that the name leads another job to its own file
"""
