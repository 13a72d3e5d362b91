"""The code fingerprint: which files, definitions and run-time values a preprocessing function is made of.

    project.py   where a file belongs: the project, a distribution, the standard library, prepcache itself
    parsed.py    what one source file says: its imports, its definitions as normalised syntax trees
    memory.py    parse results kept per user, so that an unchanged project is not parsed again
    modules.py   which file an import means, found without importing anything
    closure.py   the files that a file imports, transitively (`code="script"`)
    names.py     which globals a code object names
    frames.py    which globals a library looks up by a text
    source.py    the source of what is loaded, and whether it is still what is on disk
    labels.py    stable names for functions and classes
    reach.py     the functions, classes and globals that a function reaches at run time
    functions.py what a function holds beside its code
    classes.py   which attributes of a class count
    fields.py    what Python and libraries make of the text of a class
    lazy.py      modules that only function-local imports bring in; lazy_walk.py goes through them
    encoding.py  the encoder's hooks: code as labels, objects by class and state
    values.py    the parts of objects that the canonical encoding does not know by value
    readable.py  short readable forms of values

Invariants:
    1. Nothing here imports a module of the project or runs a line of it: what is not loaded is read
       as text, what is loaded is looked at without calling it (`__getstate__`, `__reduce_ex__` and
       `__prepcache_key__` excepted, which exist to be called for this).
    2. What cannot be keyed is refused by name (`UnkeyableError`); nothing is guessed.
"""
