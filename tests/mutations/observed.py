"""Observed inputs: what only running the function shows, and whether it is still as it was."""

from __future__ import annotations

from mutations.mutant import mutants

OBSERVE = (
    "tests/unit/test_observe.py tests/unit/test_observe_imports.py"
    " tests/unit/test_observe_once.py tests/unit/test_observe_starts.py"
)
MADE = "tests/unit/test_observe_made.py"
ROOTS = "tests/unit/test_observe_roots.py"
JOINED = "tests/unit/test_observe_joined.py"
ASKED = "tests/unit/test_observe_asked.py"
ONCE = "tests/unit/test_observe_once.py"
EDITED = "tests/unit/test_observe_edited.py"

MUTANTS = [
    *mutants(
        "supply.py",
        "tests/e2e/test_dataset_observed.py",
        {
            "each chunk is looked at": (
                "        for chunk in ref.observed:",
                "        for chunk in ref.observed[:1]:",
            ),
            "a chunk that the answer lacks": (
                "            if (rows := observed.get(chunk)) is None:\n                return None\n",
                "            rows = observed.get(chunk, ())\n",
                "tests/unit/test_observed_chunks.py",
            ),
        },
    ),
    *mutants(
        "seen.py",
        "tests/unit/test_observe_built.py",
        {
            "an edit while an item is made": (
                "return bytes_written() - self.built_after >= max(stamp[2] - self.stamp[2], 1)",
                "return True",
            ),
            "a change after its digest was known": (
                " and self.known[1] == stamp_of(info):",
                ":",
                OBSERVE,
            ),
        },
    ),
    *mutants(
        "keys/asked.py",
        ASKED,
        {
            "what is not there": ("told if is_told else _note_missed", "told"),
            "what is there": ("is_told = is_there or (mode and", "is_told = (mode and"),
            "what is of another kind": (" or (mode and not is_kind(mode))", ""),
            "what raises": ("_prepcache_{name}_told({first}, False)", "pass"),
            "what a path is asked": ("    functions.append(Path.stat)", "    # "),
            "what glob asks": ("modules = [glob, *", "modules = [*"),
            "what is only resolved": (' == "resolve":', ' == "":'),
            "what a library asks": (
                "            if not opens.is_of_job(frame):\n                return\n",
                "",
            ),
            "a name that nothing can have": (
                "        if error.errno == errno.ENAMETOOLONG:\n            raise\n",
                "",
            ),
            "no name": (" if path else ():", ":"),
            "what the function placed": (
                "is_placed = is_there and path in watch.placed",
                "is_placed = False",
            ),
            "what is placed and read": (
                "known.makes(watch.made)) or is_placed:",
                "known.makes(watch.made)):",
            ),
            "what is made for a later item": (
                " or (is_made and known is not None and known.makes(watch.made))",
                "",
            ),
            "what is still absent": (
                "                opened(path, False, watch)\n",
                "                pass\n",
            ),
            "what stays absent by its name": (
                "                known.is_absolute |= not is_relative\n",
                "                pass\n",
            ),
            "a relative name that is asked for": (
                "                counted.is_relative = is_relative\n",
                "                pass\n",
            ),
            "what somebody else made": ("                changed(counted)\n", ""),
            "a folder that somebody else made": ("                counted.stamp = None\n", ""),
            "what a function keeps of an absence": (
                "            opens.note_missing(path, is_relative, tables)\n",
                "",
            ),
        },
    ),
    *mutants(
        "observe.py",
        ASKED,
        {
            "a folder where nothing was": ("is_folder and seen.stamp is not None", "is_folder"),
            "what is not asked for again": (
                "                watch.note_missed(path)\n",
                "                pass\n",
            ),
            "what is placed": ("                if event in events.PLACES:", "                if False:"),
        },
    ),
    *mutants(
        "watches.py",
        ASKED,
        {"what is made after it was asked for": ("            self.note_absent(full)\n", "")},
    ),
    *mutants(
        "opens.py",
        ASKED,
        {"how many are kept that were asked for": ("        if len(table) < MAX_FILES:", "        if True:")},
    ),
    *mutants(
        "observe.py",
        "tests/unit/test_observe_built.py",
        {
            "an edit between two items": ("                seen.may_be_output = False\n", ""),
            "what was read before another took its place": (
                "is_made if seen is None else seen.built_after is not None",
                "is_made or seen is not None and seen.built_after is not None",
            ),
            "what a function keeps of a file that C opened": (
                "            opens.note(name, frame)",
                "            pass",
            ),
        },
    ),
    *mutants(
        "observe.py",
        OBSERVE,
        {
            "a file": (
                "            self._see(full, not os.path.isabs(path), stamp)",
                "            pass",
            ),
            "a change that is seen after it was told": (
                "        if not seen.has_changed:\n            self._fresh.append(seen)\n",
                "",
                JOINED,
            ),
            "a change while it is in use": ("        seen.has_changed = True\n", ""),
            "an edit of what is kept": (
                "if seen.stamp != stamp and not seen.is_made:",
                "if False:",
                ONCE,
            ),
            "what is kept of what was made later": (" and not seen.is_made:", ":", ONCE),
            "by which name what is kept was opened": (
                "                    seen.is_absolute |= not is_relative\n",
                "",
                ONCE,
            ),
            "an edit of what was loaded before": (
                '(kind == "module" and not is_as_loaded(seen.path, digest))',
                "False",
                EDITED,
            ),
            "machine code that was built anew": (
                "if is_built_anew(seen.path) or",
                "if",
                "tests/unit/test_extension_modules.py -k function_loads_itself",
            ),
            "a change before it is taken": (
                "if (seen.has_changed or stamp != seen.stamp) and",
                "if seen.has_changed and",
            ),
            "what is read before it is rewritten": (
                "if seen is None or not (seen.makes(watch.made) or seen.built_after is None):",
                "if True:",
            ),
            "what the function made where nothing was": (
                "if seen is None or not (seen.makes(watch.made) or seen.built_after is None):",
                "if seen is None or seen.makes(watch.made) or seen.built_after is not None:",
            ),
            "an edit of what the function made": (
                "            seen.stamp, seen.known = None if info is None else stamp_of(info), None",
                "            seen.may_be_output = True",
            ),
            "a folder that is listed": (
                "self._listed[full] = (None if",
                "_ = (None if",
            ),
            "a change of a folder while it is in use": (
                "digest = then if listing(path) == then else CHANGED",
                "digest = then",
            ),
            "a distribution": (
                'yield Input(row_of("distribution", name, digest))',
                "pass",
            ),
            "a module that is loaded already": ('_hook("prepcache.loaded", (module, frame))', "None"),
            "what a module imports that is loaded already": (
                '            self._opened(path, False, Watch(self), "prepcache.loaded")\n',
                "            pass\n",
            ),
            "a module of which a part counts": (
                "event in events.LOADS and full in self._partly",
                "False",
                f"{OBSERVE} -k something_else",
            ),
        },
    ),
    *mutants(
        "events.py",
        OBSERVE,
        {
            "a module": ('{"open", "import", "ctypes.dlopen"', '{"open", "ctypes.dlopen"'),
            "a file that is loaded as a library": (
                '"import", "ctypes.dlopen", "prepcache.read"',
                '"import", "prepcache.read"',
            ),
            "a class that a pickle names": ('"prepcache.loaded", "pickle.find_class"', '"prepcache.loaded"'),
        },
    ),
    *mutants(
        "made.py",
        MADE,
        {
            "what lies in a folder that was made": (
                "                return True\n",
                "                return False\n",
            ),
            "a folder that is there already": (
                "        if not os.path.lexists(path):\n",
                "        if True:\n",
            ),
            "where a link in it leads": ("            return real\n", "            return path\n"),
            "another name of a file": (" and path not in self._links", ""),
            "a folder that gets another name": (
                "if path in self._folders else self._files",
                "if False else self._files",
            ),
        },
    ),
    *mutants(
        "events.py",
        MADE,
        {
            "a folder that a command enters": (" if word in _ENTERS", " if False"),
            "a folder on the path of modules": ('variables.get("PYTHONPATH", "")', '""'),
            "what is named and not there": ("            yield paths[0]\n", "            pass\n"),
            "commands of the system": ("    return is_command and not any", "    return False and not any"),
            "commands of the project": (
                "    return is_command and not any(",
                "    return is_command or any(",
            ),
            "a module that is read as text": (
                'LOADS = frozenset({"prepcache.loaded", "pickle.find_class", AS_TEXT})',
                'LOADS = frozenset({"prepcache.loaded", "pickle.find_class"})',
            ),
            "lines that are shown": ("above.f_code.co_filename != linecache.__file__", "True"),
        },
    ),
    *mutants(
        "questions.py",
        ROOTS,
        {
            "paths that are resolved": (', "realpath", "resolve"})', ', "realpath"})'),
            "where the code's own file is": (' and "__file__" not in names', ""),
        },
    ),
    *mutants(
        "origins.py",
        EDITED,
        {
            "the text of each module of a file": (
                "[text for namespace, text in last.items() if namespace in spaces] or [loads[-1].text]",
                "[loads[-1].text]",
            ),
            "modules that are gone": (" if namespace in spaces] or", "] or"),
        },
    ),
    *mutants(
        "keys/inputs.py",
        OBSERVE,
        {
            "a file that was not there": ("        return ABSENT, None", "        return CHANGED, None"),
            "its digest": ('if digest != row.get("digest") or (', "if ("),
            "a module that was loaded from another text": (
                ' or (kind == "module" and not is_as_loaded(path, digest)):',
                ":",
                EDITED,
            ),
            "a root that is not known": (
                'if path is None or kind not in ("file", "module", "folder"):',
                "if False:",
            ),
            "the names in a folder": (
                'names = sorted(name for name in os.listdir(os.fsencode(path)) if name != b"__pycache__")',
                'names = [b"" for _ in os.listdir(path)]',
            ),
            "a change of a folder": (
                '            if listing(path) != row.get("digest"):',
                "            if False:",
            ),
            "a change of a distribution": (
                'if _distribution(name, installed) != row.get("digest"):',
                "if False:",
            ),
            "what two processes saw differently": (
                "            if before.row != one.row:",
                "            if False:",
                JOINED,
            ),
            "a file that changes after it was told": (
                "        return (None if info is None else stamp_of(info)) == self.stamp",
                "        return True",
                JOINED,
            ),
            "a folder that changes after it was told": (
                '            return listing(self.path) == self.row["digest"]',
                "            return True",
                JOINED,
            ),
        },
    ),
    *mutants(
        "watches.py",
        f"{OBSERVE} tests/unit/test_observe_handed.py",
        {
            "what its threads open": (
                "([] if opens.is_for_prepcache(frame) else _of_young_thread())",
                "[]",
            ),
            "what prepcache opens for itself": ("[] if opens.is_for_prepcache(frame) else ", ""),
            "what is handed to a loop": ("token = _carried.set(state.watches)", "token = _carried.set(())"),
            "what is handed to a pool": ("        if watches and not", "        if not watches and not"),
            "a pool that pickles": (" and not _is_of_interpreters(self):", ":"),
            "a watch that has ended": ("if in_progress.get(id(watch)) is watch]", "]"),
        },
    ),
    *mutants(
        "databases.py",
        "tests/unit/test_observe_databases.py",
        {
            "the log of a database": ("return [path, path + _LOG, *", "return [path, *"),
            "an empty log": ("return not size_bytes and path.endswith", "return False and path.endswith"),
            "a database named by a URI": ("return unquote(rest)", "return name"),
        },
    ),
    *mutants(
        "opens.py",
        OBSERVE,
        {
            "what is opened to be read and written": (
                "return bool(flags & (os.O_TRUNC | os.O_EXCL))",
                "return True",
            ),
            "what another thread opened for it": (
                "found |= _tables_of(other)[0]",
                "pass",
                "tests/unit/test_observe_handed.py",
            ),
            "what an item has": ("any(owns(full) for owns in list(owners.values()))", "False"),
            "where prepcache begins": ("        if table is _OWN:\n            return found, True\n", ""),
        },
    ),
    *mutants(
        "roots.py",
        OBSERVE,
        {
            "a relative name": (
                'return ["cwd:" + os.path.relpath(path, folder or self.cwd)]',
                "return [path]",
            ),
            "a job that went elsewhere": ("folder or self.cwd)]", "self.cwd)]", ROOTS),
            "an absolute name below the working directory": (
                "return [path, *self._from_cwd(path), *self._beside(path)]",
                "return [path, *self._beside(path)]",
            ),
            "a literal path": ("        if is_literal:", "        if False:"),
            "a name below the root": (
                'return [f"{tag}:{os.path.relpath(path, root)}", *from_cwd]',
                "return [path, *from_cwd]",
            ),
            "code that asks for the working directory": (
                "if self.is_cwd_asked else ()",
                "if False else ()",
                ROOTS,
            ),
            "a root itself": ("path == root or ", "", ROOTS),
            "what is beside a root": ("*self._beside(path)]", "]", ROOTS),
            "a whole checkout": ("None if self.is_checkout else self.project", "self.project", ROOTS),
            "what is far from a root": ("above != os.sep and steps <= MAX_STEPS_UP", "True", ROOTS),
        },
    ),
]
