"""Artifacts: the checks of a header without which a view could leave the file, or be of something else."""

from __future__ import annotations

from mutations.mutant import mutants

ATTACKS = "tests/unit/test_artifact_attacks.py"
GOLDEN = "tests/golden/test_golden_artifacts.py"

MUTANTS = [
    *mutants(
        "artifact/format.py",
        ATTACKS,
        {
            "the version constant": ("FORMAT_VERSION = 1", "FORMAT_VERSION = 2", GOLDEN),
            "the announced size": ("if size_bytes is not None and size != size_bytes:", "if False:"),
            "the length of the header": ("2 <= length <= min(MAX_HEADER_BYTES, size - 8)", "2 <= length"),
            "the bound of the header": ("min(MAX_HEADER_BYTES, size - 8)", "size - 8"),
            "the page border": ("    if (8 + length) % PAGE_BYTES:", "    if False:"),
            "the end of the file": ("        if not part:", "        if False:"),
            "the format's name": (' or strings.get("format") != FORMAT_NAME:', ":"),
            "the version": ('if strings.get("version") != str(FORMAT_VERSION):', "if False:"),
            "names that stand twice": ("    if len(made) != len(pairs):", "    if False:"),
            "NaN in JSON": (", parse_constant=refuse)", ")"),
            "no gap and no overlap": ("        if span.begin != position:", "        if False:"),
            "column borders": ("if span.begin % COLUMN_BYTES and", "if False and"),
            "the end of the tensors": ("    if position != size:", "    if False:"),
            "the size of a tensor": (" or end - begin != elements * ITEM_BYTES[tag]:", ":"),
            "the sum of the groups": ("    if sum(group.rows for group in groups) != rows:", "    if False:"),
            "hex digits": (
                '    if not (is_hex64(meta["recipe"]) and is_hex64(meta["key"])):',
                "    if False:",
            ),
            "observed inputs": ("or not all(_is_observed(entry) for entry in observed):", ":"),
            "the tensors that must be there": (
                "    _match(spans, _expected(groups, items, rows))",
                "    pass",
            ),
            "dtype and shape of each": (
                "if span.dtype != tag or (shape is not None and span.shape != shape):",
                "if False:",
            ),
            "tensors of no column": (
                "        if name not in expected and not (",
                "        if False and not (",
            ),
            "costs": ("    if not np.isfinite(costs).all() or (costs < 0).any():", "    if False:"),
            "the key": ('    if key != meta["key"]:', "    if False:"),
            "leaves and columns": ('tree.count_leaves(entry["tree"]) != len(specs):', "False:"),
            "two columns of one name": (
                "            if not expected.keys().isdisjoint(parts):",
                "            if False:",
            ),
            "row counts": ("    if items and (counts.min() < 0 or counts.max() > rows):", "    if False:"),
            "the sum of the row counts": (
                "if (int(past[-1]) if items else 0) != rows or (past[1:] < past[:-1]).any():",
                "if False:",
            ),
            "items that stand twice": ("    if has_twice(digests):", "    if False:"),
        },
    ),
    *mutants(
        "artifact/rows.py",
        ATTACKS,
        {
            "groups that do not exist": (
                "            if len(counted) != len(seen):",
                "            if False:",
            ),
            "rows of the groups": (
                "        if seen.tolist() != [group.rows for group in header.groups]:",
                "        if False:",
            ),
            "the axis of ragged values": (
                "    if span.shape != ((total, dtype.itemsize) if has_byte_axis else (total,)):",
                "    if False:",
            ),
            "offsets that rise": (" or (offsets[1:] < offsets[:-1]).any():", ":"),
            "the first offset": ("if offsets[0] != last or (", "if ("),
            "the last offset": ("    if last != total:", "    if False:"),
            "shapes below 0": ("if (shapes < 0).any() or (np", "if (np"),
            "shapes and offsets": (
                "            if (shapes.prod(axis=1) != np.diff(offsets)).any():",
                "            if False:",
            ),
        },
    ),
    *mutants(
        "folder.py",
        "tests/unit/test_folder.py",
        {
            "the instance": ("_instance(candidate) == instance:", "True:"),
            "the digest of a download": ("    if hasher.hexdigest() != digest:", "    if False:"),
            "the size of a download": ("    if size != size_bytes:", "    if False:"),
            "the name of a download": ("            os.replace(name, path)", "            pass"),
        },
    ),
]
