"""The recipe's inputs beside the code: config, environment, version and options."""
# ruff: noqa: E501

from __future__ import annotations

from mutations.mutant import mutants

RECIPE = "tests/unit/test_recipe.py"
OPTIONS = f"{RECIPE} -k 'option or equal_parts or two_functions'"
GOLDEN = "tests/golden/test_recipe_golden.py"
SECRETS = "tests/unit/test_recipe_secrets.py"
ENVIRONMENT = "tests/unit/test_environment.py"
MACHINE_CODE = "tests/unit/test_extension_modules.py"
CODE = (
    "tests/unit/test_reach.py tests/unit/test_closure.py -k 'replaced or vanished or extension or absolute'"
)

READABLE = "tests/unit/test_readable.py"
APART = "tests/unit/test_apart.py"

MUTANTS = [
    *mutants(
        "protocol/apart.py",
        APART,
        {
            "recipes that read alike": ("line and same[line] == 1", "line"),
            "digests of what reads alike": ("if len(readings[member, words]) > 1", "if False"),
            "what one of them has not": ("if member[0] in parts and", "if False and"),
        },
    ),
    *mutants(
        "code/readable.py",
        READABLE,
        {
            "what decides, apart from how it reads": (
                'return part.get("digest") if isinstance(part, dict) else part',
                "return part",
                f"{READABLE} -k no_drift",
            ),
            "what a method is bound to": ("if isinstance(value, MethodType):", "if False:"),
            "secrets that a method is bound to": (
                '"secret" if holds_secret(value.__self__) else _text(value.__self__)',
                "_text(value.__self__)",
            ),
            "secrets among attributes": (
                '        return "secret"\n    if type(value) in SCALARS:',
                "        pass\n    if type(value) in SCALARS:",
            ),
        },
    ),
    *mutants(
        "client/recipes.py",
        RECIPE,
        {
            "the version constant": ("RECIPE_VERSION = 1", "RECIPE_VERSION = 2", GOLDEN),
            "the domain": ("recipe v1", "recipe v2", GOLDEN),
            "the format": ('        "format": parts["format"],', "", GOLDEN),
            "the mode": ('        "mode": code["mode"],', "", GOLDEN),
            "files": (
                '"files": _table(code["files"]),',
                "",
                "tests/unit/test_closure.py -k 'absolute or swapping'",
            ),
            "bytes of extension modules": (
                'digest = digest_file(path, memo, "stat").digest.hex()',
                'digest = ""',
                "tests/unit/test_closure.py -k extension",
            ),
            "extension modules that were built anew": (
                "if is_built_anew(path) else",
                "if False else",
                "tests/unit/test_extension_modules.py -k anew",
            ),
            "definitions": (
                '"definitions": _table(code["definitions"]),',
                "",
                "tests/unit/test_reach.py -k helper_in_another",
            ),
            "values": ('"values": _table(values),', "", "tests/unit/test_reach.py -k set_by_the_entry"),
            "variables": (
                '"variables": reach.variables if is_counted else {},',
                "",
                "tests/unit/test_reach.py -k environment_variable",
            ),
            "secrets below the name of one": (
                "name if is_secret(name) else key)",
                "key)",
                f"{SECRETS} -k below",
            ),
            "secrets in variables' URLs": (
                "(is_secret(name) or holds_secret(value))",
                "is_secret(name)",
                f"{SECRETS} -k url_of",
            ),
            "the config": ('"config": config_digest,', "", f"{RECIPE} -k config"),
            "the environment": ('        "environment": parts["environment"],', "", OPTIONS),
            "version=": ('        "version": parts["version"],', "", OPTIONS),
            "expand=": ('        "expand": parts["expand"],', "", OPTIONS),
            "read=": ('        "read": parts["read"],', "", OPTIONS),
            "lengths in tables": (
                'b"%d:%s" % (len(r), r) for r in raw',
                "raw",
                f"{RECIPE} -k name_of_a_file",
            ),
            "the imports of the script": (
                '    if code == "script" and not is_again:',
                "    if False:",
                "tests/unit/test_closure.py -k absolute",
            ),
            "files named by hand": (
                'mode, paths = "files", _named_files(code)',
                'mode, paths = "files", {}',
                f"{RECIPE} -k named_by_hand",
            ),
            "Python's version": (
                '"python": python_version(),',
                "",
                f"{GOLDEN} {RECIPE} {ENVIRONMENT} -k 'python or counts or golden'",
            ),
            "the level of optimisation": (
                "sys.flags.optimize if is_debug else None",
                "None",
                "tests/unit/test_reach.py -k assert",
            ),
            "the format versions": (
                '"formats": {"encoding": ENCODING_VERSION, "parse": PARSE_VERSION, "environment": ENVIRONMENT_VERSION},',
                "",
                GOLDEN,
            ),
            "torch's default dtype": (
                '"environment": {"torch_default_dtype": default_dtype()},',
                '"environment": {},',
                GOLDEN,
            ),
            "distributions": (
                '"distributions": installed.counted(top_levels, only),',
                "",
                f"{OPTIONS} tests/unit/test_closure.py -k 'option or distributions'",
            ),
            "what the code reached in a library": (
                "top_levels = reach.top_levels | closure.top_levels",
                "top_levels = closure.top_levels",
                "tests/unit/test_reach.py tests/unit/test_recipe.py tests/unit/test_values.py tests/unit/test_values_of_globals.py -k 'library or tokenizer or compose'",
            ),
            "what a file imports of a library": (
                "top_levels = reach.top_levels | closure.top_levels",
                "top_levels = reach.top_levels",
                "tests/unit/test_closure.py -k a_library_that_a_file",
            ),
            "the canonical order of the config": (
                "config=canonical_order(given),",
                "config=given,",
                f"{RECIPE} -k order",
            ),
        },
    ),
    *mutants(
        "keys/drift.py",
        RECIPE,
        {
            "a change of the config since": (
                "for path in both if decides(leaves.get(path)) != decides(now_leaves.get(path))",
                "for path in both if False",
                f"{RECIPE} -k function_changes_is_named",
            ),
            "a library that is loaded later": ("found |= dict.fromkeys(others, False)", "", ENVIRONMENT),
            "what an executor had loaded": (
                "(*others, *_loaded_others(made))",
                "others",
                "tests/e2e/test_dataset_steady.py -k executor_makes",
            ),
            "a change of values since": (
                "label in after and decides(before[label]) != decides(after[label])",
                "False",
                f"{RECIPE} -k 'changes_while'",
            ),
        },
    ),
    *mutants(
        "keys/replaced.py",
        f"{ENVIRONMENT} -k 'installed or namespace or forked'",
        {
            "what was installed since": ("any(installed_ns > at_ns for at_ns in times.values())", "False"),
            "what was loaded since": ("any(installed_ns > at_ns for at_ns in times.values())", "True"),
            "what was loaded before prepcache": ("or _is_other(before)", ""),
            "what was installed and then loaded": ("or _is_other(before)", "or bool(before)"),
            "machine code that is built anew": (
                "return _is_another_build(path) and _say",
                "return False and _say",
                MACHINE_CODE,
            ),
            "machine code of a library": (
                "if any(_is_another_build(path) for path in files):",
                "if False:",
                f"{MACHINE_CODE} -k one_extension_module",
            ),
            "machine code behind a link": (
                "is_other = loaded.build_of(path) != build",
                "is_other = False",
                MACHINE_CODE,
            ),
            "machine code that was built before prepcache": (
                "return any(line.rstrip",
                "return False and any(line.rstrip",
                MACHINE_CODE,
            ),
            "in which process": ("in process {os.urandom(8).hex()}", "in a process"),
            "constants": ("_differs(there[name], value)", "False"),
            "constants of a branch": (" and not one.is_jump_target", ""),
            "what is said once": ("if name not in _told:", "if True:"),
        },
    ),
    *mutants(
        "client/loaded.py",
        f"{ENVIRONMENT} -k 'installed or namespace or forked'",
        {
            "when a library was loaded": (
                "_loaded_at.setdefault(code.co_filename, time.time_ns())",
                "pass",
            ),
            "what was loaded before": ("_loaded_at.update({path: SINCE_NS for", "dict({path: 0 for"),
            "when an extension module of a library was": (
                "_loaded_at.setdefault(full, time.time_ns())",
                "pass",
                f"{MACHINE_CODE} -k one_extension_module",
            ),
            "what a fork had loaded": ("if int(told[6]) & _FORKED:", "if False:"),
            "machine code that was loaded": ("_built[full] = build_of(full)", "pass", MACHINE_CODE),
            "machine code that was loaded before": ("_built[path] = build_of(path)", "pass", MACHINE_CODE),
        },
    ),
    *mutants(
        "client/environment.py",
        ENVIRONMENT,
        {
            "the version constant": ("ENVIRONMENT_VERSION = 1", "ENVIRONMENT_VERSION = 2", GOLDEN),
            "the version of a distribution": ('f"{d.version} {self._hash(d)}"', 'f"{self._hash(d)}"'),
            "the hash of its RECORD": ('f"{d.version} {self._hash(d)}"', 'f"{d.version}"'),
            "requirements": ("queue.extend(self.distributions[name].requires)", "pass"),
            "files of editable ones": ("return _files_hash(distribution.editable_root)", 'return ""'),
            "bytes of ones without RECORD": ("return _bytes_hash(distribution.folder, names)", 'return ""'),
            "bytes of files": ("            hasher.update(data)", "            pass"),
            "names of files": (
                "(len(os.fsencode(name)), os.fsencode(name), len(data))",
                '(0, b"", len(data))',
            ),
            "hashes of the files in RECORD": ('"\\0".join(row[:2])', "row[0]"),
            "names of the files in RECORD": ('"\\0".join(row[:2])', "row[1]"),
            "the stamp of what is kept": ("if row is not None and row[0] == stamps:", "if row is not None:"),
            "the first on the path": (
                "continue  # an earlier folder on the path wins, as it does for imports",
                "pass",
            ),
            "the names that narrow": ("names = {normalised(name) for name in only}", "names = set()"),
            "Python's minor version": (
                "{sys.version_info[0]}.{sys.version_info[1]}",
                "{sys.version_info[0]}",
            ),
            "Python's implementation": ("{sys.implementation.name} {sys.version", "{sys.version"),
            "the spelling of a requirement": (
                "requires.append(normalised(match[1]))",
                "requires.append(match[1])",
            ),
            "torch's default dtype": ("return str(get()) if get is not None else", "return"),
            "torch's default device": (
                'if get_device is not None and get_device().type != "cpu":',
                "if False:",
            ),
        },
    ),
]
