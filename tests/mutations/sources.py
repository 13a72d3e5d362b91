"""Source: the files that count, what a file says, and whether it is still what was loaded."""
# ruff: noqa: E501

from __future__ import annotations

from mutations.mutant import mutants

CLOSURE = "tests/unit/test_closure.py"
REACH = "tests/unit/test_reach.py"
CORNERS = "tests/unit/test_reach_corners.py"
EXTENSIONS = "tests/unit/test_extension_modules.py"
ALONE = "tests/unit/test_autoreload.py"
HEADS = "tests/unit/test_heads.py"
OTHERWISE = "tests/unit/test_reached_otherwise.py"
LAZY = "tests/unit/test_lazy_modules.py"
UNLOADED = "tests/unit/test_lazy_unloaded.py"
LIBRARIES = "tests/unit/test_lazy_libraries.py"
LOADED = "tests/unit/test_drift_loaded.py"
PARSES = "tests/unit/test_parse_memory.py"
GOLDEN = "tests/golden/test_recipe_golden.py"

MUTANTS = [
    *mutants(
        "closure.py",
        CLOSURE,
        {
            "transitive imports": ("self._follow(parsed.imports, module, is_package)", "pass"),
            "parents' __init__": (
                "            self._add_parents(base)\n            found",
                "            found",
            ),
            "parents' __init__ of the script": (
                "self._add_parents(module)\n            self._queue",
                "self._queue",
            ),
            "submodules taken by from": ('self._visit(f"{base}.{name}")', "pass"),
            "submodules taken by star": ("names = _public_names(", "names = () and _public_names("),
            "relative imports": ("    if statement.level == 0:", "    if True:"),
            "levels of relative imports": ("up = statement.level - 1", "up = 0"),
            "extension modules": (
                "elif found.kind in (Kind.SOURCE, Kind.EXTENSION, Kind.BYTECODE)",
                "elif found.kind in (Kind.SOURCE, Kind.BYTECODE)",
            ),
            "loaded extension modules": (
                "        if module not in self.modules:",
                "        if False:",
                f"{CLOSURE} {EXTENSIONS} -k extension",
            ),
            "refusal of bytecode": ("if found.kind is Kind.BYTECODE:", "if False:"),
            "installed distributions": ('self.top_levels.add(name.partition(".")[0])', "pass"),
            "two files of one name": (
                "while name in self.files and",
                "while False and",
                f"{CLOSURE} -k two_files",
            ),
        },
    ),
    *mutants(
        "code/modules.py",
        CLOSURE,
        {
            "namespace packages": (
                'return Found(Kind.NAMESPACE, "", tuple(portions)) if portions else _MISSING',
                "return _MISSING",
            ),
            "extension before source": (
                "(*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)",
                "(*SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)",
            ),
            "where a module was loaded from": (
                "        if loaded is not None:\n            return loaded",
                "        if False:\n            return loaded",
                f"{OTHERWISE} -k left_the_path",
            ),
        },
    ),
    *mutants(
        "code/facts.py",
        CLOSURE,
        {
            "plain imports": ("self._imports.append((0, alias.name, (), bound))", "pass", CLOSURE),
            "imports from": (
                'self._imports.append((node.level, node.module or "", names, None))',
                "pass",
                CLOSURE,
            ),
            "conditional imports": (
                "            self.generic_visit(node)\n\n    def visit_Assert",
                "            pass\n\n    def visit_Assert",
                CLOSURE,
            ),
            "import_module of a literal": (
                "self._imports.append((len(first.value) - len(name), name, (), None))",
                "pass",
                CLOSURE,
            ),
            "imports for type checkers only": ('if name == "TYPE_CHECKING" and', "if False and", CLOSURE),
            "assert": (
                "        self._is_debug = True\n        self.generic_visit(node)",
                "        self.generic_visit(node)",
                f"{REACH} -k assert",
            ),
            "globals()": ("elif function in _DYNAMIC and", "elif False and", f"{CORNERS} -k by_text"),
            "sys.modules": (
                "                self._is_dynamic = self._is_far = True\n",
                "                pass\n",
                f"{CORNERS} -k by_text",
            ),
        },
    ),
    *mutants(
        "parsed.py",
        REACH,
        {
            "the version constant": ("PARSE_VERSION = 4", "PARSE_VERSION = 5", GOLDEN),
            "the digest of the source": ("digest=blake3(source).hexdigest(),", 'digest="",', CLOSURE),
            "names of fields": (
                'out.append(b"." + key.encode())',
                "pass",
                f"{REACH} -k 'reached_changes and slice'",
            ),
            "constants": (
                'out.append(b"%s:%d:%s" % (type(value).__name__.encode(), len(text), text))',
                "pass",
                f"{REACH} -k 'reached_changes and (default or type)'",
            ),
            "kinds of nodes": (
                'out.append(b"(" + type(node).__name__.encode())',
                'out.append(b"(")',
                f"{REACH} -k 'reached_changes and operator'",
            ),
            "inner definitions": (
                'out.append(b"d" + self._define(value, scope))',
                "self._define(value, scope)",
                f"{REACH} -k 'reached_changes and (nested or base or staticmethod)'",
            ),
            "docstrings": ("value = value[1:]", "pass", f"{REACH} -k 'not_reached'"),
            "names in annotations": (
                "        for part in (*node.decorator_list, *(a.annotation for a in arguments), node.returns):",
                "        for part in ():",
                f"{CORNERS} -k annotation",
            ),
        },
    ),
    *mutants(
        "source.py",
        f"{REACH} {CORNERS} -k 'edited or generated or other_text or bytecode or replaced'",
        {
            "refusal of source edited since": (
                "        raise _changed(function, unit)\n\n",
                "        return found\n\n",
            ),
            "the digest of the text": ("known == digest]", "True]"),
            "the name that code was compiled under": (
                "os.path.basename(own) == os.path.basename(filename)",
                "True",
                f"{CORNERS} -k under_another_name",
            ),
            "the file of a class": (
                "function.__globals__ is space and ",
                "",
                f"{CORNERS} -k librarys_methods",
            ),
            "lazy modules that were edited": (
                "if is_lazy and self._is_edited(function, unit):",
                "if False:",
                HEADS,
            ),
            "classes of lazy modules that were edited": (
                "is_lost = is_lazy and ",
                "is_lost = False and ",
                HEADS,
            ),
            "code compiled alone of lazy modules": ("() if is_lazy else (unit, home)", "(unit, home)", ALONE),
            "texts that were loaded": (
                "            if (found := _in(unit, function)) is not None:\n                return found\n",
                "            pass\n",
                HEADS,
            ),
            "that a text is not known": ("self.is_unsure |= not texts", "self.is_unsure = True", ALONE),
            "what a library's decorator was given": (
                "if is_library_file(code.co_filename) and name != code.co_filename:",
                "if False:",
                ALONE,
            ),
            "a head that the text has not": ("return qualname not in then or now", "return now", HEADS),
            "a tree that is the same": ("tree_of(load.text) != tree_of(self._text(unit))", "True", HEADS),
            "a library's function, copied": (
                "if copied is not None and (known",
                "if False and (known",
                HEADS,
            ),
            "heads of functions": (
                "if found is not None and not self._is_head",
                "if False and not self._is_head",
                HEADS,
            ),
            "heads of classes": (
                "if is_lost or not self._is_head_loaded(cls, unit, cls.__qualname__):",
                "if is_lost:",
                HEADS,
            ),
        },
    ),
    *mutants(
        "code/origins.py",
        HEADS,
        {
            "the load that a function is of": ("if any(load.made(code) for code in codes):", "if False:"),
            "what was there before a load": ("if not load.found(what):", "if True:"),
            "the namespace of a load": ("if load.namespace == id(space)]", "if True]"),
        },
    ),
    *mutants(
        "code/heads.py",
        "tests/unit/test_heads.py",
        {
            "annotations of arguments": ("return repr((arguments, ", "return repr(([], "),
            "annotations of what is returned": ("_dumped(node.returns), ", ""),
            "keywords' annotations": ("        *node.args.kwonlyargs,\n", ""),
            "decorators of a class": ("node.keywords, node.decorator_list,", "node.keywords,"),
            "statements of a class": ("            yield _dumped(node)", "            yield ''"),
            "fields that are made by calls": ("AnnAssign) and not _calls(node.value)", "AnnAssign)"),
            "values that are counted": (
                "if isinstance(node, ast.AnnAssign) and not _calls(node.value):",
                "if False:",
            ),
            "names that are made by calls": (
                "all(map(_is_plain, node.targets)) and not _calls(node.value):",
                "all(map(_is_plain, node.targets)):",
            ),
            "names that are counted": ("isinstance(node, ast.Assign) and all(", "False and all("),
        },
    ),
    *mutants(
        "loaded.py",
        "tests/unit/test_heads.py",
        {
            "what was there before": ('path.endswith(".py") and', "False and"),
            "how much is kept": ("_kept_bytes + len(text) > MAX_BYTES", "False"),
            "a text that is not all": ("        known.clear()\n", ""),
            "modules that load themselves": ("if type(module) is ModuleType]", "]"),
            "room that is given back": ("        _kept_bytes -= sum(len(one.text) for one in known)\n", ""),
            "what autoreload executes": (
                "if frame.f_code.co_filename not in _IMPORTING:",
                "if False:",
                ALONE,
            ),
        },
    ),
    *mutants(
        "labels.py",
        ALONE,
        {
            "a name that a module took away": ("not is_from_there and ", "", "tests/unit/test_pydantic.py"),
            "whose a function is by its globals": (
                "Place.PROJECT if home is Place.PROJECT and isinstance(file, str) else place",
                "place",
            ),
        },
    ),
    *mutants(
        "opens.py",
        ALONE,
        {
            "what loads a module": (
                "loaded.note_execution(name, sys._getframe(1), is_file_of_job)",
                "pass",
                HEADS,
            )
        },
    ),
    *mutants(
        "code/compiled.py",
        f"{REACH} {CORNERS} -k 'edited or generated or other_text or bytecode or replaced'",
        {
            "the instructions of a code object": ("        code.co_code,\n", ""),
            "the constants of a code object": (
                "        tuple(const_shape(c) for c in code.co_consts),\n",
                "",
            ),
            "the names of a code object": ("        code.co_names,\n", ""),
        },
    ),
    *mutants(
        "code/alone.py",
        ALONE,
        {
            "the place of code that was compiled alone": ("if one.co_qualname == qualname]", "]"),
            "the imports of its file": (
                "                    if getattr(one, ",
                "                    if not getattr(one, ",
            ),
            "the indentation of docstrings": (
                "first.value.value = _DOCSTRING + str(first.value.value)",
                "pass",
            ),
            "the docstrings of code that was compiled alone": (
                "return inspect.cleandoc(const.removeprefix(_DOCSTRING)) == inspect.cleandoc(alone)",
                "return True",
            ),
            "the constants of code that was compiled alone": (
                " or const_shape(one) == const_shape(other)",
                " or True",
            ),
            "the names of code that was compiled alone": (
                "        _outline(code, is_ignored) == _outline(alone, is_ignored)\n        and ",
                "        ",
            ),
            "the code in code that was compiled alone": (" and _is_alike(one, other) for", " for"),
            "the future flag": (
                "code.co_flags & ~__future__.annotations.compiler_flag if is_ignored else code.co_flags",
                "code.co_flags",
            ),
            "the flags of what compiles": ("if is_ignored else code.co_flags", "if True else code.co_flags"),
            "the file of a decorated function": ("is_library_file(name) or (", "("),
            "which of several that are alike": ("if len(alike) == 1 else", "if alike else"),
            "the file of a property": (' or (name == "<string>" and is_compiled_alone(function))', ""),
        },
    ),
    *mutants(
        "code/project.py",
        f"{OTHERWISE} -k beside_installed",
        {
            "a module beside installed ones": (
                "return Place.SITE if top in tops else Place.PROJECT",
                "return Place.SITE",
            ),
            "an installed module": (
                "return Place.SITE if top in tops else Place.PROJECT",
                "return Place.PROJECT",
            ),
        },
    ),
    *mutants(
        "code/memory.py",
        PARSES,
        {
            "the stamp of what this process parsed": (
                "if known is not None and known[0] == stamp:\n            return known[1]\n        row",
                "if known is not None:\n            return known[1]\n        row",
            ),
            "the stamp of what is kept": (
                "if row is not None and tuple(row[0]) == stamp:",
                "if row is not None:",
            ),
            "the stamp of kept codes": (
                "if known is not None and known[0] == stamp:\n                return parsed, known[1]",
                "if known is not None:\n                return parsed, known[1]",
            ),
            "a file as young as the clock can tell": (
                "if self._clock() - max(stamp[3], stamp[4]) / 1e9 > RACY_S:",
                "if True:",
            ),
            "a file that is written while it is read": (
                "            if stamp_of(os.fstat(file.fileno())) == before:\n",
                "            if True:\n",
            ),
            "the stamp's device": ("return (status.st_dev, ", "return (0, "),
            "the stamp's inode": ("status.st_ino, ", "0, "),
            "the stamp's size": ("status.st_size, ", "0, "),
            "the stamp's mtime": ("status.st_mtime_ns, ", "0, "),
            "the stamp's ctime": (", status.st_ctime_ns)", ", 0)"),
        },
    ),
    *mutants(
        "code/local_imports.py",
        LIBRARIES,
        {
            "attributes of what is imported": ("            found[what].add(chain)", "            pass"),
            "names of the code around": (
                "bound = {name: around[name] for name in code.co_freevars if name in around}",
                "bound: dict[str, set[Bound]] = {}",
            ),
            "what `from` takes": (
                "yield name, Bound(level, module, taken)",
                "yield name, Bound(level, module)",
            ),
            "modules under another name": ("if name == top and not taken else", "if True else"),
            "one of two imports to a name": (
                "bound.setdefault(name, set()).add(what)",
                "bound[name] = {what}",
            ),
        },
    ),
    *mutants(
        "code/outlines.py",
        UNLOADED,
        {
            "conditions": ("*(ast.Expr(part) for part in asked)", "*()", f"{UNLOADED} -k condition"),
            "conditions of imports": (
                "[name] if around else []",
                "[]",
                f"{UNLOADED} -k condition",
            ),
            "what speaks of a name": ("binds | _spoken_of(node)", "binds", f"{UNLOADED} -k put"),
            "names within compound statements": (
                "            self._add(child, conditions)",
                "            pass",
            ),
            "what decorators speak of": ("    outline._add_spoken_of()\n", "", f"{UNLOADED} -k decorator"),
            "what may bind any name": ("self.dynamic.append(statement)", "pass", f"{UNLOADED} -k text"),
            "imports of everything": ("self.stars.append(what)", "pass", f"{UNLOADED} -k everything"),
        },
    ),
    *mutants(
        "code/texts.py",
        LIBRARIES,
        {
            "what a library computes": ("outline.is_open and name not in outline.assigned", "True"),
            "what is put into a library": (
                "outline is None or (outline.is_open and",
                "outline is None or (True and",
            ),
            "a literal of a library's": (
                'module == "builtins" or module not in sys.modules',
                "True",
                LIBRARIES,
            ),
        },
    ),
    *mutants(
        "code/lazy_walk.py",
        UNLOADED,
        {
            "what a text names": (
                "            self.name(module, name, chains.get(name, set()) | named.get(name, set()))",
                "            pass",
            ),
            "modules that are named by text": (
                "for loaded in modules_named_in(code):",
                "for loaded in ():",
                f"{UNLOADED} -k looked",
            ),
            "names that are looked up by text": (
                "            self._follow(module, None)\n            for loaded",
                "            for loaded",
                f"{UNLOADED} -k looked",
            ),
            "names in texts": (
                "named = named_by(code, outline.names()) if outline is not None else {}",
                "named: dict[str, set[Chain]] = {}",
                f"{UNLOADED} -k query",
            ),
            "modules whose class was replaced": (
                "type(loaded) is not ModuleType or ",
                "",
                f"{UNLOADED} -k replaced",
            ),
            "what functions of a text import": (
                "        self.imports(statement.imports, module, self._texts.is_package(module))",
                "",
                f"{UNLOADED} -k method",
            ),
            "what a text takes from a module that is loaded": (
                "            self._walk.count_global(space, module, name, set(chains))\n\n    def _unbound",
                "            pass\n\n    def _unbound",
            ),
            "modules that a text names": (
                "                self._modules(base, chains)\n        if taken",
                "                pass\n        if taken",
            ),
            "what modules make when they are asked": (
                '            self.name(home, "__getattr__", {()})',
                "            pass",
                f"{UNLOADED} -k asked",
            ),
            "builtins that a job has made": (
                "            self._walk.count_global(self._spaces.setdefault(module, {}), module, taken, set(chains))",
                "            pass",
                f"{UNLOADED} -k builtin",
            ),
            "what a text says of a module that is not loaded": (
                '            self._told.expect(f"{module}.{name}")',
                "            pass",
                LOADED,
            ),
            "settings of libraries": (
                "                    self._walk.count_module(loaded, (what.name, *chain) if what.name else chain)",
                "                    pass",
                LIBRARIES,
            ),
        },
    ),
    *mutants(
        "code/told.py",
        LOADED,
        {
            "what counts by its text, for later looks": (
                "        if is_so:\n            self.labels[label] = type(value)",
                "        if False:\n            self.labels[label] = type(value)",
            ),
        },
    ),
    *mutants(
        "keys/drift.py",
        LOADED,
        {
            "what has come up": (
                "met.update({label: state for label, state in after.items() if label not in before})",
                "pass",
            ),
        },
    ),
    *mutants(
        "code/lazy.py",
        LAZY,
        {
            "a constant that was set": (
                "return _is_literal(value, ast.literal_eval(text))",
                "return True",
            ),
            "the class of a constant": (
                "    if type(value) is not type(literal):",
                "    if False:",
            ),
            "the elements of a constant": (
                "return len(value) == len(literal) and all(map(_is_literal, value, literal))",
                "return len(value) == len(literal)",
            ),
            "how many elements a constant has": (
                "return len(value) == len(literal) and all(map(_is_literal, value, literal))",
                "return all(map(_is_literal, value, literal))",
            ),
            "the classes of a set's elements": (
                "return value == literal and all(_is_literal(element, written[element]) for element in value)",
                "return repr(value) == repr(literal)",
            ),
            "the name of a function": (
                "return file in closure.parsed and value.__qualname__ == name and _is_told(closure, module, name, file)\n    if",
                "return file in closure.parsed and _is_told(closure, module, name, file)\n    if",
            ),
            "the file of a function": (
                "return file in closure.parsed and value.__qualname__ == name and _is_told(closure, module, name, file)\n    if",
                "return value.__qualname__ == name\n    if",
            ),
            "the name of a class": (
                "return file in closure.parsed and value.__qualname__ == name and _is_told(closure, module, name, file)\n    return _is_constant",
                "return file in closure.parsed and _is_told(closure, module, name, file)\n    return _is_constant",
            ),
            "the file of a class": (
                "return file in closure.parsed and value.__qualname__ == name and _is_told(closure, module, name, file)\n    return _is_constant",
                "return value.__qualname__ == name\n    return _is_constant",
            ),
            "which file an import leads to": (
                "                queue.append(base)\n    return False",
                "                queue.append(base)\n    return len(seen) > 1",
            ),
            "the parts of a property": (
                "return all(is_as_written(closure, texts, module, name, part) for part in parts)",
                "return True",
            ),
            "the function of a static method": (
                "return is_as_written(closure, texts, module, name, value.__func__)",
                "return True",
            ),
        },
    ),
]
