"""Items: their digests, the stamps and memo of file digests, and the entry key."""

from __future__ import annotations

from mutations.mutant import mutants

ITEMS = "tests/unit/test_items.py"
FILES = "tests/unit/test_files.py"
MAPPED = "tests/unit/test_mapped.py"
MEMO = "tests/unit/test_memo.py"
AGREE = "tests/unit/test_items.py -k 'short_way or bytes_and_name or many_shapes or run'"
GOLDEN = "tests/golden/test_canonical_vectors.py -k pinned"

MUTANTS = [
    *mutants(
        "paths.py",
        ITEMS,
        {
            "the name of a path": (
                'Named(name, b"f" + self.named(name), info, False)',
                'Named(name, b"f", info, False)',
            ),
            "the name of a directory": ('b"t" + self.named(name)', 'b"t"'),
            "the name of what is not there": ('b"0" + self.named(name)', 'b"0"'),
            "what is not there in the report": (
                "if info is None:\n            return self._nothing",
                "if info is None:\n            return None and self._nothing",
            ),
            "bytes and text": ('b"b" if self.read == "bytes" else b"x"', 'b"b"'),
            "the name where contents are read": (
                'return self.read != "path" and encoder',
                "return False and encoder",
            ),
            "the length of a name": ("return kind + length(len(raw)) + raw", "return kind + raw"),
            "names as bytes": ('return b"y" + length(len(name)) + name', 'return b"y"'),
            "names below a root": ('kind, name = b"r", relative', "name = relative"),
            "the root": ("relative = self._relative(name)", "relative = None"),
            "roots that are named otherwise": ("if absolute.startswith(self._absolute_root):", "if False:"),
            "refusal of a directory named by str": (
                "if not is_marked and (is_text or not self.takes_directories):",
                "if False:",
            ),
            "refusal of special files": ("if not is_directory(info):", "if False:"),
            "the bytes of a config's file": (
                "return named.head + digest(named.name, memo, trust).digest",
                "return named.head",
                "tests/unit/test_recipe.py -k 'config or directory'",
            ),
        },
    ),
    *mutants(
        "keys/blocks.py",
        ITEMS,
        {
            "the name of a path": (
                "put(path_body(kind, self.rules.named(name)))",
                'put(path_body(kind, b""))',
                AGREE,
            ),
            "the digest of a file": ("put(self.new_slot(name, info))", "self.new_slot(name, info)"),
            "the digest of a tree": ("            put(digested.digest)", "            pass"),
            "the typed name of what is not there": (
                "put(tag + length(len(named.head)) + named.head)",
                "put(tag)",
            ),
            "what is young among files": (
                "stamps[slot], is_racy[slot] = digested.stamp, digested.is_racy",
                "stamps[slot] = digested.stamp",
            ),
            "what follows a digest": (
                "files[at : at + DIGEST_BYTES] + tail",
                "files[at : at + DIGEST_BYTES]",
            ),
            "the file of each item": ("at = DIGEST_BYTES * slot", "at = 0"),
            "trust in contents": (
                'if walk.memo is not None and walk.trust == "stat":',
                "if walk.memo is not None:",
            ),
        },
    ),
    *mutants(
        "client/records.py",
        AGREE,
        {
            "the name of a path": (
                "return [heads[len(raw)] + raw for raw in",
                "return [heads[len(raw)] for raw in",
            ),
            "the type of a path": ('(b"S" if kind is str else b"p")', 'b"p"'),
            "the count of a tuple": ('return [b"t" + length(width), *zip', 'return [b"t", *zip'),
            "the keys of a dict": ("parts += [text_bytes(key), [item[key]", 'parts += [b"", [item[key]'),
            "the order of a dict's keys": ("for key in sorted(keys, key=simple_key):", "for key in keys:"),
            "str of which some name files": ("if any(map(names_file, values)):", "if False:", ITEMS),
            "registered types": (
                "if kinds or is_registered(kind):",
                "if kinds:",
                "tests/unit/test_items.py tests/property/test_item_properties.py",
            ),
            "equal widths": (
                "all(type(item) is tuple and len(item) == width for item in run)",
                "all(type(item) is tuple for item in run)",
            ),
            "equal keys": (
                "all(type(item) is dict and tuple(item) == keys for item in run)",
                "all(type(item) is dict for item in run)",
            ),
            "the stamp's device": ('attrgetter("st_dev", ', 'attrgetter("st_rdev", ', ITEMS),
            "the stamp's inode": ('"st_ino", ', '"st_rdev", ', ITEMS),
            "the stamp's size": ('"st_size", ', '"st_rdev", ', ITEMS),
            "the stamp's mtime": ('"st_mtime_ns", ', '"st_rdev", ', ITEMS),
            "the stamp's ctime": (', "st_ctime_ns")', ', "st_rdev")', ITEMS),
        },
    ),
    *mutants(
        "client/files.py",
        FILES,
        {
            "the stamp's device": ("return (signed(info.st_dev), ", "return (0, "),
            "the stamp's inode": ("signed(info.st_ino), ", "0, "),
            "the stamp's size": (
                "info.st_size, info.st_mtime_ns, info.st_ctime_ns)",
                "0, info.st_mtime_ns, info.st_ctime_ns)",
            ),
            "the stamp's mtime": (
                "info.st_size, info.st_mtime_ns, info.st_ctime_ns)",
                "info.st_size, 0, info.st_ctime_ns)",
            ),
            "the stamp's ctime": (
                "info.st_size, info.st_mtime_ns, info.st_ctime_ns)",
                "info.st_size, info.st_mtime_ns, 0)",
            ),
            "trust in contents": (
                '    if memo is not None and trust == "stat":\n        try:',
                "    if memo is not None:\n        try:",
            ),
            "the stat after reading": (" and stamp_of(os.fstat(fd)) == stamp:", ":"),
            "the racy rule with a memo": (
                "racy = not memo.add(stamp, digest, read_at_ns)",
                "racy = not memo.add(stamp, digest, read_at_ns) and False",
                f"{FILES} {ITEMS} -k 'young or tick or racy'",
            ),
            "the racy rule without a memo": (
                "racy = is_racy(stamp, read_at_ns, racy_window_ns(stamp[0]))",
                "racy = False",
                f"{FILES} {ITEMS}",
            ),
            "the bytes of a file": (
                "hasher.update(buffer[:count])",
                "hasher.update(buffer[: min(count, 4096)])",
            ),
            "names in a tree": (
                'return kind + len(relative).to_bytes(8, "big") + relative',
                "return kind",
                ITEMS,
            ),
            "kinds in a tree": (
                'return kind + len(relative).to_bytes(8, "big") + relative',
                'return len(relative).to_bytes(8, "big") + relative',
                f"{FILES} {ITEMS}",
            ),
            "lengths of names in a tree": (
                'return kind + len(relative).to_bytes(8, "big") + relative',
                "return kind + relative",
            ),
            "bytes in a tree": (
                'content.update(_entry(relative, info) + (digested.digest if digested else b""))',
                "content.update(_entry(relative, info))",
                ITEMS,
            ),
            "stamps in a tree": (
                '(_FIVE.pack(*stamp_of(info)) if info and is_file else b"")',
                'b""',
                f"{FILES} {ITEMS}",
            ),
            "what is young in a tree": (
                "racy = any(digested.is_racy for digested in known.values())",
                "racy = False",
                f"{FILES} {ITEMS}",
            ),
            "refusal of special files in a tree": (
                "if inner is not None and (what := special_kind(inner)):",
                "if what := None:",
                ITEMS,
            ),
            "the version of trees": ("tree v1", "tree v2", GOLDEN),
            "the stamp of an answer": (" and _has_stamp(self.names[place], answer[0])", "", MAPPED),
        },
    ),
    *mutants(
        "map_main.py",
        MAPPED,
        {
            "the stat after mapping": (" if _stamp(fd) == stamp else _NOT_HASHED", ""),
            "the later windows": ("range(0, size, WINDOW_BYTES)", "range(0, min(size, 1), WINDOW_BYTES)"),
            "the place of a window": ("offset=start", "offset=0"),
            "forgetting the file before": ("    hasher.reset()\n", ""),
        },
    ),
    *mutants(
        "mounts.py",
        MEMO,
        {
            "a young change": ("read_at_ns - stamp[4] < window_ns or ", ""),
            "a young modification": (" or -window_ns < read_at_ns - stamp[3] < window_ns", ""),
            "the longer wait on remote filesystems": (
                "if kind in _LOCAL else REMOTE_WINDOW_NS",
                "if True else REMOTE_WINDOW_NS",
            ),
            "the longer wait on unknown ones": (
                "_windows.setdefault(device, REMOTE_WINDOW_NS)",
                "_windows.setdefault(device, LOCAL_WINDOW_NS)",
            ),
        },
    ),
    *mutants(
        "memo.py",
        MEMO,
        {
            "the racy rule": ("if self.is_racy(stamp, read_at_ns):", "if False:"),
            "the whole stamp of what is pending": (
                "if pending is not None and pending.stamp == stamp:",
                "if pending is not None:",
            ),
            "the whole stamp of many that are pending": (
                "if record is not None and record.stamp == tuple(stamps[row].tolist()):",
                "if record is not None:",
            ),
            "the owner of the folder": ("info.st_uid != os.geteuid() or ", ""),
            "the mode of the folder": (" or info.st_mode & 0o022:", ":"),
            "a forked child's own memo": ("            self._pending = {}\n        if not", "        if not"),
        },
    ),
    *mutants(
        "segments.py",
        MEMO,
        {
            "the whole stamp of many": (
                "(self.stamps[at] == stamps[rows]).all(axis=1)",
                "(self.stamps[at][:, :2] == stamps[rows][:, :2]).all(axis=1)",
            ),
            "the check of a record": (
                "return record if check_of(record) == self._checks[row] else None",
                "return record",
            ),
            "the check of many records": ("return rows[is_whole], at[is_whole]", "return rows, at"),
            "the size of the file": (
                "or size != _HEADER.size + count * _RECORD_BYTES",
                "or size < _HEADER.size",
            ),
            "the newest stamp of a file": (
                "order = np.lexsort((-days, -stamps[:, 4], ",
                "order = np.lexsort((-days, stamps[:, 4], ",
            ),
        },
    ),
    *mutants(
        "stamps.py",
        ITEMS,
        {
            "the stamps of an item": ("if now == before:", "if True:"),
            "what was young when it was read": (
                "if self._must_read is None or not self._must_read[i]:",
                "if True:",
            ),
            "trust in contents": ('if hasher.trust == "content":', "if False:"),
            "how many files an item has": ("if len(now) != len(before):", "if False:"),
        },
    ),
    *mutants(
        "originals.py",
        "tests/unit/test_originals.py tests/e2e/test_dataset_altered.py",
        {
            "items altered before an access": (
                "self._note([index], [item])\n        return item",
                "return item",
            ),
            "items altered before a fill": ("self._note(some, [self.item(index) for index in some])", "pass"),
            "items of which no bytes can be made any more": ("self._altered.update(indices)", "pass"),
        },
    ),
    *mutants(
        "client/digests.py",
        GOLDEN,
        {
            "the domain of keys": ("hasher = blake3(KEY_DOMAIN)", "hasher = blake3()"),
            "the version of keys": ("key v1", "key v2"),
            "the recipe in the key": ("    hasher.update(bytes.fromhex(recipe))", "    pass"),
            "the items in the key": ("    hasher.update(item_digests)", "    pass"),
        },
    ),
    *mutants(
        "objects.py",
        "tests/unit/test_item_objects.py",
        {
            "the class of an object": ("    walk.put_class_of(value, put)\n", ""),
            "a part of an object": ("        walk.step(part, name, put)\n", ""),
            "an object that reaches itself": ("if id(value) in walk.above:", "if False:"),
            "a function that an item holds": (
                "    if isinstance(value, FunctionType):\n        walk.classes[value] = None\n",
                "    if isinstance(value, FunctionType):\n",
            ),
            "a class that an item holds": (
                "    if isinstance(value, type):\n        walk.classes[value] = None\n",
                "    if isinstance(value, type):\n",
            ),
        },
    ),
    *mutants(
        "item_code.py",
        "tests/unit/test_item_objects.py",
        {
            "a function in the items": ('reach.add(f"items.{name_of(held)}", held)', "pass"),
            "two of one name": ("if name_of(before) == name_of(held):", "if False:"),
        },
    ),
]
