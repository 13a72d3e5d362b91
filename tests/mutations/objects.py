"""Run-time values: how functions, methods and other objects are written."""

from __future__ import annotations

from mutations.mutant import mutants

REACH = "tests/unit/test_reach.py"
VALUES = "tests/unit/test_values.py"
GLOBALS = "tests/unit/test_values_of_globals.py"
DIFFER = f"{VALUES} -k differ"
ENCODING = (
    f"{VALUES} {REACH} -k 'differ or (reached_changes and (bound or partial or dispatch or cache or table))'"
)
OTHERWISE = "tests/unit/test_reached_otherwise.py"

OTHERWISE = "tests/unit/test_reached_otherwise.py"
PYDANTIC = "tests/unit/test_pydantic.py"
LEFT = "tests/unit/test_left_by_calls.py"

MUTANTS = [
    *mutants(
        "code/left.py",
        "tests/unit/test_left.py",
        {
            "that only this was left": ("return _place(label, value) in _left", "return True"),
            "what was left": ("return _place(label, value) in _left", "return False"),
            "whose method it was left by": ('if label != "preprocess":', "if True:"),
            "a mark of its own": ("return secrets.token_bytes(16)", 'return b""'),
        },
    ),
    *mutants(
        "encoding.py",
        "tests/unit/test_left.py",
        {
            "which object was left": ('b"left:%d:" % id(value), self.mark', "self.mark"),
            "the rest of what was left": ("self._stack.clear()", 'return ""'),
        },
    ),
    *mutants(
        "steady.py",
        "tests/unit/test_left.py",
        {
            "what the first call left": (
                "self._take(label for label in self._drift() if not self._is_of_library(label))",
                "self._own.update(self._drift())",
            ),
            "that it was the function's": ("in self._own & self._bare", "in self._bare"),
        },
    ),
    *mutants(
        "code/threads.py",
        "tests/unit/test_threads.py",
        {
            "a lock": ('    "_thread.lock": (),\n', ""),
            "what a worker calls first": (
                "dict.fromkeys(_POOLS, _INITIALIZERS)",
                "dict.fromkeys(_POOLS, ())",
            ),
            "what is in a queue": ('("queue", "maxsize")', '("maxsize",)'),
            "whether an event is set": ('return [("is_set", value.is_set())]', "return []"),
            "a queue that shows nothing": ("if not value.empty():", "if False:"),
            "what a thread is to run": ("for part in (*_TO_RUN, *added)", "for part in (*added,)"),
            "what a kind of thread adds": ("for part in (*_TO_RUN, *added)", "for part in _TO_RUN"),
            "what a pool leaves in its thread": (" and part != _WORKERS", ""),
            "what this thread has": ("if isinstance(value, threading.local):", "if False:"),
        },
    ),
    *mutants(
        "code/asked.py",
        "tests/unit/test_asked.py -k shared",
        {
            "the bytes of shared memory": ('return [("bytes", value.buf)]', 'return [("bytes", b"")]'),
            "the elements of shared memory": ('return [("elements", list(value))]', "return []"),
            "that shared memory is closed": ('raise ValueError("it is closed")', "return []"),
        },
    ),
    *mutants(
        "encoding.py",
        DIFFER,
        {
            "the order of a dict in a global": (
                "encoder.opaque_depth = 1",
                "encoder.opaque_depth = 0",
                f"{REACH} -k 'reached_changes and (dict)'",
            ),
            "machine code that was built anew": (
                "if is_built_anew(found):",
                "if False:",
                "tests/unit/test_extension_modules.py -k 'library_of_ctypes_that_was'",
            ),
            "the label of a function": (
                'return f"function:{label}".encode() if label',
                'return b"function" if label',
                f"{REACH} -k 'reached_changes and table'",
            ),
            "the label of a function that is a value": (
                'payload = f"function:{name}".encode()',
                'payload = b"function"',
                f"{REACH} -k 'reached_changes and (which or table)'",
            ),
            "the label of a class": (
                'return f"class:{self._walk.refer_class(value)}".encode()',
                'return self._walk.refer_class(value)[:0].encode() + b"class"',
                f"{REACH} -k 'reached_changes and classes'",
            ),
            "the name of a module": ('return f"module:{value.__name__}".encode()', 'return b"module"'),
            "what a method is bound to": (
                'b"method:" + self._owner(value.__self__, encoder) + encoder',
                'b"method:" + encoder',
            ),
            "the function of a method": (' + encoder.part(value.__func__, "__func__")', ""),
            "the function of a partial": (
                '"func", "args", "keywords", "__dict__")\n            parts = (value.func, ',
                '"args", "keywords", "__dict__")\n            parts = (',
            ),
            "the arguments of a partial": ("parts = (value.func, value.args, ", "parts = (value.func, (), "),
            "the keywords of a partial": ("value.keywords, vars(value))", "{}, vars(value))"),
            "the name of a builtin": (
                'name = f"builtin:{value.__module__}.{value.__qualname__}".encode()',
                'name = b"builtin"',
            ),
            "what a builtin is bound to": ('return name + b":" + self._owner(owner, encoder)', "return name"),
            "the name of a library's function": (
                'name = f"library:{module}.{function.__code__.co_qualname}"',
                'name = "library"',
            ),
            "the code of a library's lambda": ('name += f":{code_digest(function.__code__)}"', "pass"),
            "cells of a library's decorator": ("raw += encoder.part(cell.cell_contents, cell_name)", "pass"),
            "defaults of a library's decorator": (
                'is_held = part[0] == "(" or (',
                'is_held = part[0] == "" or (',
                "tests/unit/test_reached_otherwise.py",
            ),
            "what a library's decorator wraps": (
                'raw += encoder.part(vars(function)["__wrapped__"], "__wrapped__")',
                "pass",
            ),
            "implementations of singledispatch": (
                'raw += encoder.part(dict(registry), "registry")',
                "pass",
                f"{REACH} -k 'reached_changes and singledispatch'",
            ),
            "the class of an object": ("encoder.put_class_of(value, chunks.append)", "pass"),
            "the names of parts": ('chunks.append(b"%d:%s" % (len(raw), raw))', "pass"),
            "the parts of an object": ("encoder.step(part, name, chunks.append)", "pass"),
            "which holder an object refers to": (
                'put(b"Y" + length(above))',
                'put(b"Y")',
                f"{GLOBALS} -k holders",
            ),
            "the bytes of a file": (
                "digest = self._file_digest(found)",
                "pass",
                f"{GLOBALS} -k 'place_in_it or names_a_file'",
            ),
            "the place of a path": (
                "return repr((name, is_inside, digest.hex()))",
                "return repr((is_inside, digest.hex()))",
                f"{REACH} -k 'reached_changes and path'",
            ),
            "whether a path lies in the checkout": (
                "name, is_inside = os.path.relpath(text, root), True",
                "name, is_inside = os.path.relpath(text, root), False",
                f"{OTHERWISE} -k checkout",
            ),
            "what torch compiled": (
                'raw += encoder.part(compiled, "compiled")',
                "pass",
                f"{OTHERWISE} -k torch",
            ),
            "the name of what a library holds": (
                'return f"library:{module}.{method.__name__}".encode()',
                'return f"library:{module}".encode()',
            ),
        },
    ),
    *mutants(
        "code/values.py",
        DIFFER,
        {
            "what an object gives to be copied": (
                "            return _reduced(value, _reduce(value), is_library)",
                "            return []",
            ),
            "what was registered for copying": (
                "            return _reduced(value, reduce(value), is_library)",
                "            return []",
            ),
            "functions that a reduction names": ("_is_function(p) or (", "(", OTHERWISE),
            "data of what is looked up": (" or (is_looked_up and not _holds_more(p))", "", OTHERWISE),
            "data of what is made anew": (
                "not is_library and _is_looked_up(maker, value)",
                "not is_library",
                OTHERWISE,
            ),
            "tables of the class that looks up": ("    spaces += [", "    [", OTHERWISE),
            "__getstate__": (
                "return _given_state(value, _less_empty(value, value.__getstate__()))",
                "return []",
            ),
            "the callable of a reduction": (
                'names = ("callable", "args", ',
                'state = state[1:] if isinstance(state, tuple) else state\n    names = ("args", ',
            ),
            "the arguments of a reduction": (
                "        if part is not None:\n",
                '        if part is not None and name != "args":\n',
            ),
            "the state of a reduction": (
                "        if part is not None:\n",
                '        if part is not None and name != "state":\n',
            ),
            "the elements of a reduction": (
                "        if part is not None:\n",
                '        if part is not None and name != "items":\n',
            ),
            "the pairs of a reduction": (
                "        if part is not None:\n",
                '        if part is not None and name != "pairs":\n',
            ),
            "the state of what says that it is a global": (
                '[("name", name), *sorted(_attributes(value), key=lambda pair: pair[0])]',
                '[("name", name)]',
                f"{VALUES} -k is_a_global",
            ),
            "refusal of what only says that it is a global": (
                'if not any(_at(getattr(module, "__dict__", {}), name) is value for module in homes):',
                "if False:",
                f"{VALUES} -k is_a_global",
            ),
            "the file of a C library": (
                'parts: Parts = [("path", value._name)]',
                "parts: Parts = []",
                f"{VALUES} -k c_library",
            ),
            "what is declared of a C function": (
                "                parts.append((name, declared))",
                "                pass",
                f"{VALUES} -k c_library",
            ),
            "a network that torch compiled": (
                'return [("compiled", vars(value)["_modules"]["_orig_mod"])]',
                'return [("compiled", None)]',
                f"{VALUES} -k torch_compiled",
            ),
            "attributes": ("            yield str(name), part", "            pass"),
            "slots": (
                "            yield name, object.__getattribute__(value, name)",
                "            pass",
                "tests/unit/test_reach.py tests/unit/test_values_of_globals.py -k 'slots'",
            ),
            "hidden state in C": (
                "        object.__reduce_ex__(value, 2)",
                "        pass",
                f"{VALUES} -k 'hidden or given_away'",
            ),
            "a logger's name": (
                'return [("name", str(getattr(value, "name", "")))]',
                'return [("name", "")]',
            ),
            "what a descriptor wraps": (
                'return [("__func__", value.__func__)]',
                "return []",
                DIFFER,
            ),
            "a property's getter": (
                '("fget", value.fget), ',
                "",
                DIFFER,
            ),
            "a property's setter": (
                '("fset", value.fset), ',
                "",
                DIFFER,
            ),
            "a property's deleter": (', ("fdel", value.fdel)', ""),
            "what a subclass of a descriptor keeps": (
                "return special + _more_state(value)",
                "return special",
            ),
            "the function of a partialmethod": (
                'return [("func", value.func), ("args"',
                'return [("args"',
            ),
            "the keywords of a partialmethod": (', ("keywords", value.keywords)]', "]"),
            "the implementations of a singledispatchmethod": (', ("dispatcher", value.dispatcher)]', "]"),
            "a cached property's function": (
                'return [("func", value.func)]',
                "return []",
                DIFFER,
            ),
            "the arguments of a partialmethod": (
                '("args", value.args), ("keywords"',
                '("keywords"',
                DIFFER,
            ),
            "what lru_cache wraps": (
                'return [("__wrapped__", value.__wrapped__)]',
                "return []",
                DIFFER,
            ),
            "a struct's format": ('return [("format", value.format)]', "return []"),
            "a code object": ('return [("code", code_digest(value))]', "return []"),
        },
    ),
    *mutants(
        "fleeting.py",
        "tests/unit/test_fleeting.py",
        {
            "a seeded generator of a library": ("elif not _is_unseeded(part):", "elif False:"),
            "an unseeded generator of a library": ("elif not _is_unseeded(part):", "else:"),
            "a global generator": (
                "(place := _global_place(part)) is not None",
                "(place := None) is not None",
            ),
            "an address": ("part > _LEAST_ADDRESS and part in addresses", "False"),
            "a kept hash": (" or _is_kept_hash(value, name, part)", ""),
            "the order of a set": ("return dict(sorted(table.items()))", "return table"),
            "the order of a table of methods": ("if is_of_set and all(", "if all("),
            "a random name": ("part.version in _RANDOM_UUIDS", "False"),
            "addresses of classes in a schema": ('_REFERENCE.sub("", part) if', "part if", PYDANTIC),
            "the globals of a validated function": ('frozenset({"ns_resolver"})', "frozenset()", PYDANTIC),
            "the modes of a backend": ("yield name, _without_modes(part)", "yield name, part", LEFT),
            "all of a backend": ("yield name, _without_modes(part)", "pass", LEFT),
            "what a call left": (" or _is_left_by_call(value, name)", "", LEFT),
            "a table that a call left": (" and not _is_left_by_call(value, name):", ":", LEFT),
            "how often a tree was asked": (
                "and _is_tree_that_counts(value, part):",
                "and False:",
                LEFT,
            ),
            "the rest of a tree": (
                "yield name, (*part[: _COUNTERS.start], *part[_COUNTERS.stop :])",
                "pass",
                LEFT,
            ),
            "what an object is named by chance": (
                "yield name, tuple(None if _is_random_uuid(one) else one for one in named)",
                "pass",
                LEFT,
            ),
            "attributes that were set": (
                "elif name in _MADE_WHEN_ASKED and part == {} and",
                "elif name in _MADE_WHEN_ASKED and",
                LEFT,
            ),
            "words that were met": ("in _less_words_met(value, parts):", "in parts:", LEFT),
            "vectors of words that were met": (
                '[("vectors", value.to_bytes(exclude=["strings"]))]',
                "[]",
                LEFT,
            ),
            "a name with an address": ("int(match[2]) == id(values[name])", "False"),
        },
    ),
    *mutants(
        "kept.py",
        "tests/unit/test_kept.py",
        {
            "that it was called": (
                "or not (cached.overloads if is_compiled else cached.cache_info().currsize)",
                "",
            ),
            "what numba has compiled": ("cached.overloads if is_compiled else cached.cache", "cached.cache"),
            "what it reaches": ("            changed &= _counted(reached).keys()", "            pass"),
        },
    ),
    *mutants(
        "questions.py",
        LEFT,
        {
            "words that the project uses": (
                "self.strings |= not _STRING_READERS.isdisjoint(names)",
                "pass",
            ),
            "backends that the project uses": (
                "self.backends |= not _BACKEND_READERS.isdisjoint(names)",
                "pass",
            ),
            "a command line that is parsed": (
                "self.arguments |= not _ARGUMENT_READERS.isdisjoint(names)",
                "pass",
                "tests/unit/test_reach_corners.py -k command_line",
            ),
            "variables whose names begin as a text": (
                "name in wanted or name.startswith(prefixes)",
                "name in wanted",
                "tests/unit/test_reach_corners.py -k begin_as",
            ),
            "files that are named in quotation marks": (
                "        yield from files_quoted_in(text)",
                "        pass",
                "tests/unit/test_observe_named.py -k quotation",
            ),
        },
    ),
    *mutants(
        "proxies.py",
        "tests/unit/test_proxies.py",
        {
            "what is wrapped": ('return [("__wrapped__", wrapped), *', "return [*"),
            "slots of a proxy": ("if is_slot or", "if"),
        },
    ),
    *mutants(
        "code/archives.py",
        "tests/unit/test_archives.py",
        {
            "the file of an archive": ('("file", Path(value.filename)), ', ""),
            "whether an archive's path leads to what is open": (
                "if os.path.samestat(os.fstat(descriptor), lying):",
                "if lying:",
            ),
        },
    ),
    *mutants(
        "code/values.py",
        "tests/unit/test_values_in_c.py",
        {
            "a table that is read when it is asked": (
                "        if _SCAN in state:",
                "        if ():",
                f"{LEFT} -k files",
            ),
            "functions that an expression calls": (
                "and _CALLS_PYTHON.search(state)",
                "and ()",
                f"{LEFT} -k functions",
            ),
            "what is pickled in an object": (
                "        return pickle.loads(argument)",
                "        return 0",
                LEFT,
            ),
            "what is referred to weakly": ('return [("referent", value())]', 'return [("referent", None)]'),
            "the functions of a ufunc": ('("functions", held), ', ""),
            "the identity of a ufunc": (", value.identity)", ")"),
            "the settings of a contrast filter": ("for name in _CLAHE_STATE if", "for name in () if"),
            "the value of a context variable": (', ("value", value.get())', ""),
            "an empty dict that was asked for": ("(io.BytesIO, io.StringIO, BaseException)", "()"),
        },
    ),
    *mutants(
        "onnx.py",
        "tests/unit/test_values_in_c.py",
        {
            "the bytes of a model": ('[("model", model), ', "["),
            "the providers of a session": (
                '("providers", value._providers), ("options", value._provider_options)',
                "",
            ),
            "options that a session was given": ("value._sess_options_initial is not None", "False"),
            "weights in files of their own": ("    if has_others:", "    if False:"),
        },
    ),
    *mutants(
        "torch_modules.py",
        "tests/unit/test_torch_modules.py",
        {
            "the order of hooks": (
                "ranked = {name: [(rank.get(k, k), v)",
                "ranked = {name: [(0, v)",
                f"{GLOBALS} -k hook",
            ),
            "what is beside a script": (" + _beside(torch, value)", ""),
            "what a script is saved as": ("_records(value.save_to_buffer()) + ", ""),
            "what a scripted function is saved as": (
                "        return _records(value.save_to_buffer())\n    kind",
                "        return []\n    kind",
            ),
            "where a script's source was": ('".debug_pkl", ', ""),
            "the class of a parametrized module": ('("of", kind.__bases__[0]), ', ""),
            "the state of a parametrized module": (", *with_ranked_hooks(own)]", "]"),
        },
    ),
]
