"""What counts of the code: loaded code objects, what their names mean, and the files that are imported.

Invariants:
    1. Nothing here imports a module of the project or runs a line of it, but `__getstate__`, `__reduce_ex__`
       and `__prepcache_key__`: what is loaded is looked at, what is not loaded is compiled and not executed.
    2. What cannot be keyed is refused by name (`UnkeyableError`); nothing is guessed.
"""
