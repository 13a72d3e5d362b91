"""What counts of the code: loaded code objects, what their names resolve to, and the files that are imported.

    dependencies.py     the walk: functions, classes and globals that a function depends on
    fingerprint.py      the digest of a loaded code object
    names.py            which globals a code object names, and what it reads from them
    partial_reads.py    what it reads of `self`, and of parsed arguments
    module_state.py     modules that functions import themselves
    dynamic_lookups.py  what code asks for beside what it names
    classes.py          what counts of a class
    settings.py         plain data that code reads from libraries
    import_graph.py     source files, and what they import, transitively (`code="script"`)
    project.py          where a file belongs: the project, a distribution, the standard library, prepcache
    labels.py           stable names for functions and classes
    values.py           the encoder of values and configs: code and objects as labels
    describe.py         short readable forms of values
    item_code.py        the code that items hold

Invariants:
    1. Nothing here imports a module of the project or runs a line of it: what is loaded is looked at without
       calling it (`__getstate__`, `__reduce_ex__` and `__prepcache_key__` excepted, which exist to be called
       for this), what is not loaded is compiled and not executed.
    2. What cannot be keyed is refused by name (`UnkeyableError`); nothing is guessed.
"""
