"""The walk: names, definitions and values that a function reaches."""
# ruff: noqa: E501

from __future__ import annotations

from mutations.mutant import mutants

REACH = "tests/unit/test_reach.py"
CORNERS = "tests/unit/test_reach_corners.py"
EXTENSIONS = "tests/unit/test_extension_modules.py"
OTHERWISE = "tests/unit/test_reached_otherwise.py"
FRAMES = "tests/unit/test_frames.py"
FIELDS = "tests/unit/test_fields.py"
LAZY = "tests/unit/test_lazy_modules.py"
PLACES = "tests/unit/test_module_places.py"
VARIABLES = "tests/unit/test_variables.py"

MUTANTS = [
    *mutants(
        "code/settings.py",
        "tests/unit/test_library_settings.py",
        {
            "settings in a library's own types": (
                "if cls not in (dict, list, set) else None",
                "if False else None",
            ),
            "options of pandas": ('if cls.__name__ == "DictWrapper" and', "if False and"),
            "which option is read": ("while chain and type(value)", "while False and type(value)"),
            "what readers put there": ("and not isinstance(value, _MADE_BY_READERS)", "and True"),
            "a set": ("not in (list, tuple, dict, set, frozenset)", "not in (list, tuple, dict)"),
            "members of enums": ("if isinstance(part, enum.Enum):", "if False:"),
            "settings in settings": ("return _plain_part(part)", "return None"),
            "how colors follow each other": (
                'return list(part) if type(part).__module__ == "cycler" else part',
                "return part",
            ),
            "which backend was found": (" and not _is_found(name, part)", ""),
            "another backend": (" and part.lower().endswith(_DRAWS_ALIKE)", ""),
        },
    ),
    *mutants(
        "answers.py",
        OTHERWISE,
        {
            "subclasses that are asked for": (
                'yield f"{label}.__subclasses__()", type.__subclasses__(cls), cls',
                "yield from ()",
                f"{OTHERWISE} -k subclass",
            ),
            "classes in annotations that are read": (
                'yield f"{label}({name}:)", part, function',
                "yield from ()",
                f"{OTHERWISE} -k annotation",
            ),
            "data that annotations are": ('yield f"{label}({name}:)", data, function', "pass", FIELDS),
            "modules of what is reached": (
                "self.homes.values() if self.asked.modules else ()",
                "()",
                f"{OTHERWISE} -k looked_up",
            ),
            "modules that values name": (
                "sorted(self.hooks.texts & sys.modules.keys()) if self.asked.dynamic else []",
                "[]",
                f"{OTHERWISE} -k looked_up",
            ),
        },
    ),
    *mutants(
        "questions.py",
        VARIABLES,
        {
            "variables that values name": (
                "held.intersection(os.environ) | self._prefixes",
                "self._prefixes",
            ),
            "prefixes in values": ("self._prefixes.add(text)", "pass"),
            "the home folder": ('self.home |= "expanduser" in names or', "self.home |="),
            "its name": (' or ("home" in names and not _PATHS.isdisjoint(names))', ""),
            "the temporary folder": ("self.temporary |= not _TEMPORARY_READERS.isdisjoint(names)", "pass"),
            "prefixes of the session": (
                'n.endswith("_") and not _OF_SESSION.fullmatch(n))',
                'n.endswith("_"))',
            ),
            "prefixes however they are written": (
                'n.endswith("_") and not _OF_SESSION',
                'n.endswith("_") and _CONSTANT.fullmatch(n[:-1]) and not _OF_SESSION',
            ),
            "names of readers as text": ("self._note_names({text})", "pass", f"{OTHERWISE} -k docstring"),
            "references in values": ('                if "$" in text:\n', "                if False:\n"),
            "words of the session": (
                "if _VARIABLE.fullmatch(t) and not _OF_SESSION.fullmatch(t)}",
                "if _VARIABLE.fullmatch(t)}",
            ),
            "data in annotations as text": (
                "is_code or (in_text and any(",
                "is_code or (False and any(",
                FIELDS,
            ),
            "modules in annotations": (
                "        return bool(rest)",
                "        return False",
                FIELDS,
            ),
            "aliases of types": (
                "isinstance(value, FunctionType | type) or is_alias(value)",
                "isinstance(value, FunctionType | type)",
                f"{OTHERWISE} -k alias",
            ),
            "aliases in annotations": (" or is_alias(annotation):", ":", f"{OTHERWISE} -k annotation"),
        },
    ),
    *mutants(
        "builtin_types.py",
        VARIABLES,
        {
            "texts in values": ("        encoder.texts.add(value)\n", "        pass\n"),
            "keys in values": ("                encoder.texts.add(key)\n", "                pass\n"),
        },
    ),
    *mutants(
        "keys/recipes.py", VARIABLES, {"texts in the config": ("    encoder.texts = hooks.texts\n", "")}
    ),
    *mutants(
        "code/cells.py",
        f"{REACH} -k around",
        {
            "nested code": ("            yield from _chains(const, name)", "            pass"),
            "frames": ("if found and _OF_FRAMES.isdisjoint(all_names(code))", "if found"),
        },
    ),
    *mutants(
        "names.py",
        REACH,
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
                f"{REACH} -k 'set_by_the_entry or args'",
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
        PLACES,
        {
            "an object in the place of a module": (
                '            self._value(f"sys.modules.{known_as}", module, sys)\n',
                "",
            ),
            "the class of one that is in its own place": (
                "home = found_there if isinstance(found_there, ModuleType) else None",
                "home = found_there",
            ),
            "what must not be imported": (
                'elif (below := sys.modules.get(f"{known_as}.{chain[0]}")) is not None:',
                'elif (below := sys.modules.get(f"{known_as}.{chain[0]}", 0)) != 0:',
            ),
        },
    ),
    *mutants(
        "labels.py",
        PLACES,
        {
            "an object of a library's": (
                "        return places.of(file) if isinstance(file, str) else Place.PROJECT\n    file",
                "        return Place.PROJECT\n    file",
            ),
        },
    ),
    *mutants(
        "lazy_walk.py",
        PLACES,
        {
            "an object that a text takes a name of": (
                "            self._walk.count_module(put, (taken,))\n",
                "            pass\n",
            ),
            "an object that a text imports": (
                "                self._taken(module, name, put, chains)\n",
                "                pass\n",
            ),
            "an object below a package": ("or sys.modules.get(name) is not None", ""),
        },
    ),
    *mutants(
        "questions.py",
        PLACES,
        {
            "objects that are looked up as modules": (
                "if module is not None]",
                "if isinstance(module, ModuleType)]",
            ),
        },
    ),
    *mutants(
        "keys/events.py",
        PLACES,
        {
            "what an import gives that is no module": (
                "told(module.__name__ if isinstance(module, ModuleType) else name,",
                "told(module.__name__,",
            ),
        },
    ),
    *mutants(
        "reach.py",
        REACH,
        {
            "definitions of functions": (
                "self.definitions[label] = found[1].digest if found else",
                'self.definitions[label] = "" if found else',
                f"{REACH} -k 'reached_changes and (body)'",
            ),
            "code of generated functions": (
                "else digest_without_text(function)",
                'else "code"',
                f"{REACH} -k generated",
            ),
            "classes of modules": (
                'self._value(f"{name}.__class__", type(module), module)',
                "pass",
                f"{OTHERWISE} -k class_of_a_module",
            ),
            "what classes of modules read": (
                "            self._whole_module(module)  # its properties",
                "            pass  # its properties",
                f"{OTHERWISE} -k class_of_a_module",
            ),
            "globals": (
                "            self.count_global(space, self._module_label(space), name, chains[name])",
                "            pass",
                f"{REACH} -k 'reached_changes and constant'",
            ),
            "what is read of an args namespace": (
                'self._value(f"{label}.{attribute}", vars(bag).get(attribute, type(bag)), bag)',
                "pass",
                f"{REACH} -k args",
            ),
            "an args namespace that is passed on": (
                "if any(is_used_whole(bag, chain) for chain in chains):",
                "if False:",
                f"{REACH} -k args",
            ),
            "attributes of project modules": (
                "self.count_global(space, name, chain[0], {chain[1:]})\n        elif (below",
                "pass\n        elif (below",
                f"{REACH} -k 'module'",
            ),
            "modules used as values": (
                "            self._whole_module(module)\n        elif chain",
                "            pass\n        elif chain",
                f"{REACH} -k module_used",
            ),
            "definitions of classes": (
                '"+".join(d.digest for d in definitions) or MADE_AT_RUN_TIME',
                '""',
                f"{REACH} -k 'reached_changes and (annotation)'",
            ),
            "bases of classes": (
                'self._value(f"{label}.__bases__", cls.__bases__, cls)',
                "pass",
                f"{REACH} -k 'reached_changes and bases'",
            ),
            "attributes of classes": (
                'self._value(f"{label}.{name}", value, cls)',
                "pass",
                f"{REACH} -k 'reached_changes and (class and attribute)'",
            ),
            "imports inside functions": (
                "for path in self._closure.add_imports(definition.imports, module, is_package):",
                "for path in ():",
                LAZY,
            ),
            "values of lazy modules": (
                "        self._lazily.imports(definition.imports, module, is_package)\n",
                "",
                LAZY,
            ),
            "variables that are named": (
                "self.variables[name] = os.environ.get(name)",
                "pass",
                f"{REACH} -k environment_variable",
            ),
            "variables of lazy modules": (
                "self._named_variables(statement.variables)",
                "pass",
                f"{LAZY} -k variable",
            ),
            "names looked up by text": (
                "            self._dynamic(unit, module, space)",
                "            pass",
                f"{CORNERS} -k by_text",
            ),
            "names in annotations": (
                "for dotted in definition.names:",
                "for dotted in ():",
                f"{CORNERS} -k annotation",
            ),
            "docstrings that are read": (
                'self.definitions.update({f"{label}.__doc__"',
                'dict({f"{label}.__doc__"',
                f"{REACH} -k 'reached_changes and (docstring)'",
            ),
            "settings of libraries": (
                "        elif is_setting(label, value) or",
                "        elif",
                f"{REACH} {CORNERS} -k 'setting or arguments'",
            ),
            "distributions of libraries": (
                'self.top_levels.add(module.partition(".")[0])',
                "pass",
                f"{REACH} tests/unit/test_values.py tests/unit/test_values_of_globals.py tests/unit/test_recipe.py -k 'library or tokenizer or compose'",
            ),
            "files that texts of globals name": (
                "self.named_files.update(questions.files_quoted_in(value))",
                "pass",
                "tests/unit/test_observe_named.py -k quotation",
            ),
            "modules that an extension module makes": (
                "name, file = labels.file_of(module)",
                'name, file = module, getattr(sys.modules.get(module), "__file__", None)',
                EXTENSIONS,
            ),
            "extension modules": (
                "self._closure.add_extension(name, file)",
                "pass",
                EXTENSIONS,
            ),
            "second things of one label": (
                "while unique in self.values:",
                "while False:",
                f"{CORNERS} -k one_name",
            ),
            "annotations as text that are read": (
                "            for dotted in names_in(text):",
                "            for dotted in ():",
                f"{OTHERWISE} -k annotation",
            ),
            "annotations of classes as text": (
                "for dotted in names_in(*texts_of(cls)):",
                "for dotted in ():",
                FIELDS,
            ),
            "sources that are read": (
                "                self._closure.add_file(module, path)\n        self._named",
                "                pass\n        self._named",
                f"{OTHERWISE} -k comment",
            ),
            "modules that are looked up anywhere": (
                "                self._whole_module(home)\n        for space",
                "                pass\n        for space",
                f"{OTHERWISE} -k looked_up",
            ),
            "what lazy modules ask for": (
                "self._asked.note_text(*statement.asked)",
                "pass",
                VARIABLES,
            ),
            "modules named by text": (
                "                self.count_module(loaded, ())",
                "                pass",
                f"{CORNERS} -k by_text",
            ),
            "variables named by globals": (
                "        self._asked.note_global(value)",
                "        pass",
                f"{OTHERWISE} -k variable",
            ),
            "variables whose names are handed on": (
                "self._named_variables(self._asked.named_variables(self.hooks.texts))",
                "pass",
                f"{OTHERWISE} -k variable",
            ),
            "the __getattr__ of a module": (
                """self._value(f"{name}.__getattr__", space["__getattr__"], space)""",
                "pass",
                f"{OTHERWISE} -k getattr",
            ),
            "submodules that a package does not hold": (
                "self.count_module(below, chain[1:])",
                "pass",
                f"{OTHERWISE} -k its_package",
            ),
            "what was put into a library": (
                " or self._is_put_there(value):",
                ":",
                f"{OTHERWISE} -k into_a_library",
            ),
            "functions put into a library": (
                "            return not self.is_library(value)\n",
                "            return False\n",
                f"{OTHERWISE} -k into_a_library",
            ),
            "attributes of a library's class": (
                "self._library_attribute(label, vars(value), chain[1:])",
                "pass",
                f"{OTHERWISE} -k into_a_library",
            ),
            "files of what is reached": (
                "self.sources.setdefault(unit.path, module)",
                "pass",
                f"{OTHERWISE} -k by_its_place",
            ),
            "untracked names": (
                "                self.ignored.add(name)\n                return True",
                "                self.ignored.add(name)",
                f"{REACH} {CORNERS} -k 'untracked or left_out'",
            ),
        },
    ),
    *mutants(
        "code/labels.py",
        f"{CORNERS} -k 'one_name or one_key'",
        {
            "second labels of one name": ('wanted if count == 1 else f"{wanted}#{count}"', "wanted"),
            "the entry script's name": (
                "if name not in _MAIN and isinstance(name, str):",
                "if isinstance(name, str):",
            ),
            "classes that name a module that does not define them": (
                "if place is not Place.PROJECT and _is_made_elsewhere(cls, module):",
                "if False:",
                f"{OTHERWISE} -k 'default and run'",
            ),
        },
    ),
    *mutants(
        "functions.py",
        REACH,
        {
            "defaults": (
                "for name, value in zip(named[len(named) - len(defaults) :], defaults, strict=True):",
                "for name, value in ():",
                f"{REACH} -k 'reached_changes and (default)'",
            ),
            "defaults of keyword arguments": (
                "for name, value in sorted(given.items()):",
                "for name, value in ():",
                f"{REACH} -k 'reached_changes and (keyword)'",
            ),
            "closure cells": (
                'yield f"[{name}]", content',
                "pass",
                f"{REACH} -k 'reached_changes and (closure)'",
            ),
            "attributes of functions": (
                "for name, value in sorted(vars(function).items()):",
                "for name, value in ():",
                f"{REACH} -k 'reached_changes and (attribute and function)'",
            ),
        },
    ),
    *mutants(
        "frames.py",
        FRAMES,
        {
            "names in texts of the code": ("texts = [*_texts_of_code(function), *", "texts = [*"),
            "names in texts of values": (
                "*_texts_within([*values, *(part for _, part in state_of(function))])",
                "*()",
            ),
            "names in tables of texts": (
                "yield from (part for part in islice(parts, _MOST)",
                "yield from (part for part in ()",
            ),
            "names in texts of others": ("yield space, _named_by(texts, space), is_lazy", "yield from ()"),
            "names in texts of other code": ("self._of_code.update(_texts_of_code(function))", "pass"),
            "words of vocabularies": (" if not text.isidentifier()]", "]"),
            "that somebody looks names up": (
                "return not READERS.isdisjoint(all_names(function.__code__))",
                "return True",
            ),
            "docstrings of what looks names up": (" if text != function.__doc__)", ")"),
            "modules that are only words": ("and (rest or not isinstance(space[name], ModuleType))", ""),
            "attributes in texts": (r'(?:\.[^\W\d]\w*)*")', '")'),
            "that lazy modules' texts are told": (
                "self._callers[id(function.__globals__), is_lazy]",
                "self._callers[id(function.__globals__), False]",
            ),
        },
    ),
    *mutants(
        "fields.py",
        FIELDS,
        {
            "variables that settings read": (
                "v.lower() in wanted or v.lower().startswith(nested)",
                "False",
                "tests/unit/test_pydantic.py -k settings",
            ),
            "metaclasses": (
                'yield "__class__", type(cls)',
                "pass",
                f"{REACH} -k 'reached_changes and (metaclass)'",
            ),
            "annotations of classes made at run time": (
                'yield "__annotations__", _annotations_of(cls)',
                "pass",
                f"{OTHERWISE} -k annotation",
            ),
            "slots that are computed": ("yield name, _names_in(cls, vars(cls)[name])", "pass"),
            "slots that are literals do not count": (
                'if is_bound and f"{cls.__qualname__}.{name}" not in literals',
                "if is_bound",
            ),
            "slots that a library makes do not count": ("(name in named or not definitions)", "True"),
            "slots of a class made at run time": ("(name in named or not definitions)", "name in named"),
            "slots that were an iterator": ("if isinstance(value, _AGAIN):", "if True:"),
            "that a lazy class is told by its text": (
                "return bool(definitions) and all(",
                "return False and all(",
            ),
            "what the text of a lazy class names": (
                "return bool(definitions) and all(isinstance(part, types.FunctionType) for part in data)",
                "return True",
            ),
            "data in annotations": ('yield f"{name}:", data', "pass"),
            "data in bases": ('yield "<bases>", data', "pass"),
            "the metadata of a field": (
                'yield f"{name}.metadata", dict(field.metadata)',
                "pass",
                f"{OTHERWISE} -k metadata",
            ),
            "the metadata of a field of attrs": (
                'yield f"{attribute.name}.metadata", dict(attribute.metadata)',
                "pass",
            ),
            "defaults of a model": (
                "        yield from _defaults(name, info)\n        if given",
                "        if given",
                f"{OTHERWISE} -k pydantic",
            ),
            "what a field was given": ('yield f"{name}.field", given', "pass"),
            "private attributes of a model": ('vars(cls).get("__private_attributes__") or {}', "{}"),
            "what validators are for": ('yield "<decorators>", decorators', "pass"),
            "docstrings of computed fields": ('given.pop("description", None)', "pass"),
            "annotations that are completed later": (
                '_LATER = frozenset({"annotation", "return_type"})',
                "_LATER = frozenset()",
            ),
            "aliases that are made later": ('if given.get("alias_priority") == _GENERATED:', "if False:"),
        },
    ),
    *mutants(
        "classes.py",
        f"{REACH} -k 'reached_changes and class and attribute'",
        {
            "fields of a structure of ctypes": (
                'type(value).__name__ == "CField"',
                "False",
                "tests/unit/test_values_in_c.py -k ctypes",
            ),
            "members of an enum": (
                'yield "<members>", {name: _member(member)',
                'yield "<members>", {name: 0',
                f"{OTHERWISE} -k enum",
            ),
            "that copies by others do not count": (
                "(name == SLOTS_NOTED and not is_copied)",
                "False",
                "tests/unit/test_values_of_globals.py -k copying",
            ),
            "what was put into a class of an extension module": (
                "        keeps = _not_in_c(extension)",
                "        return",
                EXTENSIONS,
            ),
            "functions of others in a class of an extension module": (
                "function.__module__ is None or _extension_of(function.__module__) == extension",
                "True",
                EXTENSIONS,
            ),
            "attributes": (
                "            yield name, value\n    if isinstance",
                "            pass\n    if isinstance",
            ),
            "what an abstract class was told of": (
                'yield "<registered>", registered',
                "pass",
                f"{OTHERWISE} -k abstract",
            ),
            "the state of an enum's member": (
                "return (member._value_, more) if more else member._value_",
                "return member._value_",
                f"{OTHERWISE} -k enum",
            ),
            "functions set on an enum": (
                "        return not is_library(inner)\n    return isinstance",
                "        return False\n    return isinstance",
                f"{OTHERWISE} -k enum",
            ),
            "tables set on an enum": (
                'return isinstance(inner, property) or not (name.startswith("_") and name.endswith("_"))',
                "return isinstance(inner, property)",
                f"{OTHERWISE} -k enum",
            ),
            "functions set on a namedtuple": (
                'return not inner.__code__.co_filename.startswith("<") and not is_library(inner)',
                "return False",
                f"{OTHERWISE} -k namedtuple",
            ),
        },
    ),
]
