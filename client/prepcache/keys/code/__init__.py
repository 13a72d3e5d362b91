"""What counts of the code: loaded code objects, what their names resolve to, and the files that are imported.

    fingerprint.py    the digest of a loaded code object
    dependencies.py   the walk: functions, classes and globals that a function depends on
    names.py          which globals a code object names; cells.py: which variables of the function around it
    local_imports.py  which modules code imports into names of its own
    module_state.py   modules that functions import themselves
    import_graph.py   the files that a file imports, transitively (`code="script"`)
    source_files.py   the bytes, code and imports of one source file, read without importing it
    project.py        where a file belongs: the project, a distribution, the standard library, prepcache
    dynamic_lookups.py  what code asks for beside what it names (answers.py); frames.py: names in texts
    classes.py        which attributes of a class count; fields.py: what libraries make of its text
    labels.py         stable names for functions and classes
    encoding.py       the encoder's hooks: code as labels, objects by class and state
    values.py         the parts of objects that the canonical encoding does not know by value
    describe.py       short readable forms of values

Invariants:
    1. Nothing here imports a module of the project or runs a line of it: what is loaded is looked at without
       calling it (`__getstate__`, `__reduce_ex__` and `__prepcache_key__` excepted, which exist to be called
       for this), what is not loaded is compiled and not executed.
    2. What cannot be keyed is refused by name (`UnkeyableError`); nothing is guessed.
"""
