"""Code: the files that count, the definitions and run-time values that a function reaches."""
# ruff: noqa: E501

from __future__ import annotations

from mutations.mutant import mutants

CLOSURE = "tests/unit/test_closure.py"
REACH = "tests/unit/test_reach.py"
CORNERS = "tests/unit/test_reach_corners.py"
VALUES = "tests/unit/test_values.py -k 'differ or alike or private or place_in_it or names_a_file'"
ENCODING = f"{REACH} tests/unit/test_values.py -k 'differ or (reached_changes and (bound or partial or dispatch or cache or table))'"
CHANGES = f"{REACH} -k reached_changes"
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
                f"{CLOSURE} {CORNERS} -k extension",
            ),
            "refusal of bytecode": ("if found.kind is Kind.BYTECODE:", "if False:"),
            "installed distributions": ('self.top_levels.add(name.partition(".")[0])', "pass"),
            "two files of one name": (
                "while name in self.files and",
                "while False and",
                f"{CLOSURE} {CORNERS}",
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
        },
    ),
    *mutants(
        "parsed.py",
        CHANGES,
        {
            "the version constant": ("PARSE_VERSION = 1", "PARSE_VERSION = 2", GOLDEN),
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
            "globals()": ("elif function in _DYNAMIC or", "elif", f"{CORNERS} -k by_text"),
            "sys.modules": (
                'self._is_dynamic |= node.value.id == "sys" and node.attr == "modules"',
                "pass",
                f"{CORNERS} -k by_text",
            ),
            "the digest of the source": ("digest=blake3(source).hexdigest(),", 'digest="",', CLOSURE),
            "names of fields": (
                'out.append(b"." + key.encode())',
                "pass",
                f"{REACH} -k 'reached_changes and (function)'",
            ),
            "constants": (
                'out.append(b"%s:%d:%s" % (type(value).__name__.encode(), len(text), text))',
                "pass",
                f"{REACH} -k 'reached_changes and (default or type)'",
            ),
            "kinds of nodes": (
                'out.append(b"(" + type(node).__name__.encode())',
                'out.append(b"(")',
                f"{REACH} -k 'reached_changes and (function)'",
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
                CORNERS,
            ),
        },
    ),
    *mutants(
        "source.py",
        f"{REACH} {CORNERS} -k 'edited or generated or other_text or bytecode or replaced'",
        {
            "refusal of source edited since": (
                "        raise SourceChangedError(",
                "        return found\n        raise SourceChangedError(",
            ),
            "the instructions of a code object": ("        code.co_code,\n", ""),
            "the constants of a code object": ("        tuple(_const(c) for c in code.co_consts),\n", ""),
            "the names of a code object": ("        code.co_names,\n", ""),
            "the digest of the text": ("known == digest]", "True]"),
        },
    ),
    *mutants(
        "names.py",
        CHANGES,
        {
            "nested code": (
                "chains.setdefault(name, set()).update(found)",
                "pass",
                f"{REACH} -k 'reached_changes and (nested)'",
            ),
            "globals": (
                "                root, chain = name, []",
                "                pass",
                f"{REACH} -k 'reached_changes and (constant)'",
            ),
            "attributes of globals": (
                "                chain.append(names[arg >> _ATTR_SHIFT])",
                "                pass",
                f"{REACH} -k 'changes or args or setting'",
            ),
            "long names": (
                "arg, extended = extended | raw[at + 1], 0",
                "arg, extended = raw[at + 1], 0",
                f"{REACH} -k 'reached and many'",
            ),
        },
    ),
    *mutants(
        "reach.py",
        CHANGES,
        {
            "definitions of functions": (
                "self.definitions[label] = found[1].digest if found else",
                'self.definitions[label] = "" if found else',
                f"{REACH} -k 'reached_changes and (body)'",
            ),
            "code of generated functions": ('f"code:{code_digest(code)}"', '"code"', f"{REACH} -k generated"),
            "defaults": (
                "for name, value in zip(named[len(named) - len(defaults) :], defaults, strict=True):",
                "for name, value in ():",
                f"{REACH} -k 'reached_changes and (default)'",
            ),
            "defaults of keyword arguments": (
                "for name, value in sorted((function.__kwdefaults__ or {}).items()):",
                "for name, value in ():",
                f"{REACH} -k 'reached_changes and (keyword)'",
            ),
            "closure cells": (
                'self._value(f"{label}[{name}]", content, function)',
                "pass",
                f"{REACH} -k 'reached_changes and (closure)'",
            ),
            "attributes of functions": (
                "for name, value in sorted(vars(function).items()):",
                "for name, value in ():",
                f"{REACH} -k 'reached_changes and (attribute and function)'",
            ),
            "globals": ("            self._global(space, module, name, chains[name])", "            pass"),
            "what is read of an args namespace": (
                'self._value(f"{label}.{attribute}", content, value)',
                "pass",
                f"{REACH} -k args",
            ),
            "an args namespace that is passed on": (
                "elif _is_attribute_bag(value) and not any(_is_of_class(value, chain) for chain in chains):",
                "elif _is_attribute_bag(value):",
                f"{REACH} -k args",
            ),
            "attributes of project modules": (
                "self._global(space, name, chain[0], {chain[1:]})\n        elif f",
                "pass\n        elif f",
                f"{REACH} -k 'module'",
            ),
            "modules used as values": (
                "            self._whole_module(module)\n        elif chain",
                "            pass\n        elif chain",
                f"{REACH} -k 'module_used or changes'",
            ),
            "definitions of classes": (
                '"+".join(d.digest for d in definitions) or "made at run time"',
                '""',
                f"{REACH} -k 'reached_changes and (annotation)'",
            ),
            "bases of classes": (
                'self._value(f"{label}.__bases__", cls.__bases__, cls)',
                "pass",
                f"{REACH} -k 'reached_changes and bases'",
            ),
            "metaclasses": (
                'self._value(f"{label}.__class__", type(cls), cls)',
                "pass",
                f"{REACH} -k 'reached_changes and (metaclass)'",
            ),
            "attributes of classes": (
                'self._value(f"{label}.{name}", value, cls)',
                "pass",
                f"{REACH} -k 'reached_changes and (class and attribute)'",
            ),
            "imports inside functions": (
                "for path in self._closure.add_imports(definition.imports, module, is_package):",
                "for path in ():",
                f"{REACH} -k lazy",
            ),
            "values of lazy modules": (
                "            self._lazy_import(statement, module, is_package)\n\n    def",
                "            pass\n\n    def",
                f"{REACH} {CORNERS} -k lazy",
            ),
            "variables that are named": (
                "self.variables[name] = os.environ.get(name)",
                "pass",
                f"{REACH} -k environment_variable",
            ),
            "variables of lazy modules": (
                "self._named_variables(self._closure.parsed[path].variables)",
                "pass",
                f"{CORNERS} -k variable",
            ),
            "names looked up by text": (
                "            self._dynamic(unit, module, space)",
                "            pass",
                f"{CORNERS} -k by_text",
            ),
            "names in annotations": (
                "            self._named_code(space, module, dotted)",
                "            pass",
                f"{CORNERS} -k annotation",
            ),
            "docstrings that are read": (
                'self.definitions.update({f"{label}.__doc__"',
                'dict({f"{label}.__doc__"',
                f"{REACH} -k 'reached_changes and (docstring)'",
            ),
            "settings of libraries": (
                "        elif _is_setting(label, value) or",
                "        elif",
                f"{REACH} {CORNERS} -k 'setting or arguments'",
            ),
            "distributions of libraries": (
                'self.top_levels.add(module.partition(".")[0])',
                "pass",
                f"{REACH} tests/unit/test_values.py tests/unit/test_recipe.py -k 'library or tokenizer or compose'",
            ),
            "extension modules": (
                "self._closure.add_extension(module, file)",
                "pass",
                f"{CORNERS} -k extension",
            ),
            "second things of one label": ("while unique in self.values:", "while False:", CORNERS),
            "untracked names": (
                "                self.ignored.add(name)\n                return True",
                "                self.ignored.add(name)",
                f"{REACH} {CORNERS} -k 'untracked or left_out'",
            ),
        },
    ),
    *mutants(
        "labels.py",
        CORNERS,
        {
            "second labels of one name": ('wanted if count == 1 else f"{wanted}#{count}"', "wanted"),
            "the entry script's name": (
                "if name not in _MAIN and isinstance(name, str):",
                "if isinstance(name, str):",
            ),
        },
    ),
    *mutants(
        "encoding.py",
        ENCODING,
        {
            "the order of a dict in a global": (
                "encoder.opaque_depth = 1",
                "encoder.opaque_depth = 0",
                f"{REACH} -k 'reached_changes and (dict)'",
            ),
            "the label of a function": (
                'return f"function:{label}".encode() if label',
                'return b"function" if label',
            ),
            "the label of a function that is a value": (
                'payload = f"function:{name}".encode()',
                'payload = b"function"',
                f"{REACH} -k 'reached_changes and (which or table)'",
            ),
            "the label of a class": (
                'return f"class:{self._walk.refer_class(value)}".encode()',
                'return self._walk.refer_class(value)[:0].encode() + b"class"',
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
            "what a library's decorator wraps": (
                'raw += encoder.part(vars(function)["__wrapped__"], "__wrapped__")',
                "pass",
            ),
            "implementations of singledispatch": ('raw += encoder.part(dict(registry), "registry")', "pass"),
            "the class of an object": ("encoder.put_class_of(value, chunks.append)", "pass"),
            "the names of parts": ('chunks.append(b"%d:%s" % (len(raw), raw))', "pass"),
            "the parts of an object": ("encoder.step(part, name, chunks.append)", "pass"),
            "which holder an object refers to": (
                'put(b"Y" + length(above))',
                'put(b"Y")',
                "tests/unit/test_values.py -k holders",
            ),
            "the bytes of a file": (
                "digest = self._file_digest(text)",
                "pass",
                "tests/unit/test_values.py -k 'place_in_it or names_a_file'",
            ),
            "the place of a path": (
                "return repr((name, is_inside, digest.hex()))",
                "return repr((is_inside, digest.hex()))",
                "tests/unit/test_values.py -k 'place_in_it or names_a_file'",
            ),
        },
    ),
    *mutants(
        "code/values.py",
        VALUES,
        {
            "what an object gives to be copied": (
                "            return _reduced(value, value.__reduce_ex__(4))",
                "            return []",
            ),
            "what was registered for copying": (
                "            return _reduced(value, reduce(value))",
                "            return []",
            ),
            "__getstate__": ("return _given_state(value, value.__getstate__())", "return []"),
            "the callable of a reduction": (
                'names = ("callable", "args", ',
                'state = state[1:] if isinstance(state, tuple) else state\n    names = ("args", ',
            ),
            "attributes": ("            yield str(name), part", "            pass"),
            "slots": (
                "            yield name, object.__getattribute__(value, name)",
                "            pass",
                "tests/unit/test_reach.py tests/unit/test_values.py -k 'slots'",
            ),
            "hidden state in C": (
                "        object.__reduce_ex__(value, 2)",
                "        pass",
                "tests/unit/test_values.py -k 'hidden or given_away'",
            ),
            "a logger's name": (
                'return [("name", str(getattr(value, "name", "")))]',
                'return [("name", "")]',
            ),
            "what a descriptor wraps": (
                'return [("__func__", value.__func__)]',
                "return []",
                f"{REACH} tests/unit/test_values.py -k 'changes or differ'",
            ),
            "a property's getter": (
                '("fget", value.fget), ',
                "",
                f"{REACH} tests/unit/test_values.py -k 'changes or differ'",
            ),
            "a property's setter": (
                '("fset", value.fset), ',
                "",
                f"{REACH} tests/unit/test_values.py -k 'changes or differ'",
            ),
            "a cached property's function": (
                'return [("func", value.func)]',
                "return []",
                f"{REACH} tests/unit/test_values.py -k 'changes or differ'",
            ),
            "the arguments of a partialmethod": (
                '("args", value.args), ("keywords"',
                '("keywords"',
                f"{REACH} tests/unit/test_values.py -k 'changes or differ'",
            ),
            "what lru_cache wraps": (
                'return [("__wrapped__", value.__wrapped__)]',
                "return []",
                f"{REACH} tests/unit/test_values.py -k 'changes or differ'",
            ),
            "a struct's format": ('return [("format", value.format)]', "return []"),
            "a code object": ('return [("code", code_digest(value))]', "return []"),
            "the order of hooks": (
                "ranked = {name: [(rank.get(k, k), v)",
                "ranked = {name: [(0, v)",
                "tests/unit/test_values.py -k hooks",
            ),
        },
    ),
    *mutants(
        "classes.py",
        f"{REACH} tests/unit/test_values.py -k 'changes or differ or pydantic'",
        {
            "members of an enum": (
                'yield "<members>", {name: _member(member)',
                'yield "<members>", {name: 0',
            ),
            "attributes": (
                "            yield name, value\n    yield from",
                "            pass\n    yield from",
            ),
            "defaults of a model": ("    yield from _model_fields(cls)", "    pass"),
        },
    ),
]
