"""Artifacts: the checks of a header without which a view could leave the file, or be of something else."""

from __future__ import annotations

from mutations.mutant import mutants

HEADERS = "tests/unit/test_artifact_attacks_headers.py"
DOCUMENTS = "tests/unit/test_artifact_attacks_documents.py"
ATTACKS = f"{HEADERS} {DOCUMENTS}"
GOLDEN = "tests/golden/test_golden_artifacts.py"

MUTANTS = [
    *mutants(
        "artifact/format.py",
        ATTACKS,
        {
            "the version constant": ("FORMAT_VERSION = 2", "FORMAT_VERSION = 3", GOLDEN),
            "the announced size": (
                "if size_bytes is not None and size != size_bytes:",
                "if False:",
                f"{HEADERS} -k announced_size",
            ),
            "the length of the header": (
                "2 <= length <= min(MAX_HEADER_BYTES, size - 8)",
                "2 <= length",
                f"{HEADERS} -k over_its_bound",
            ),
            "the bound of the header": (
                "min(MAX_HEADER_BYTES, size - 8)",
                "size - 8",
                f"{HEADERS} -k over_its_bound",
            ),
            "the page border": (
                "    if (8 + length) % PAGE_BYTES:",
                "    if False:",
                f"{HEADERS} -k off_the_page",
            ),
            "the end of the file": (
                "        if not part:",
                "        if False:",
                f"{HEADERS} --timeout=20 -k shrinks",
            ),
            "the format's name": (
                ' or strings.get("format") != FORMAT_NAME:',
                ":",
                f"{HEADERS} -k 'tensors_that_lie and format'",
            ),
            "the version": (
                'if strings.get("version") != str(FORMAT_VERSION):',
                "if False:",
                f"{HEADERS} -k 'tensors_that_lie and version'",
            ),
            "names that stand twice": (
                "    if len(made) != len(pairs):",
                "    if False:",
                f"{HEADERS} -k name_that_stands_twice",
            ),
            "NaN in JSON": (", parse_constant=refuse,", ",", f"{DOCUMENTS} -k 'documents_that_lie and NaN'"),
            "no gap and no overlap": (
                "        if span.begin != position:",
                "        if False:",
                f"{HEADERS} -k 'tensors_that_lie and gap'",
            ),
            "column borders": ("if span.begin % COLUMN_BYTES and", "if False and", f"{HEADERS} -k unaligned"),
            "the end of the tensors": (
                "    if position != size:",
                "    if False:",
                f"{HEADERS} -k truncated",
            ),
            "the size of a tensor": (
                " or end - begin != elements * ITEM_BYTES[tag]:",
                ":",
                f"{HEADERS} -k 'tensors_that_lie and beyond'",
            ),
            "the sum of the groups": (
                "    if sum(group.rows for group in groups) != rows:",
                "    if False:",
                f"{DOCUMENTS} -k only_group",
            ),
            "hex digits": (
                '    if not (is_hex64(meta["recipe"]) and is_hex64(meta["key"])):',
                "    if False:",
                f"{DOCUMENTS} -k 'documents_that_lie and recipe'",
            ),
            "observed inputs": (
                'or type(meta["observed"]) is not str:',
                ":",
                f"{DOCUMENTS} -k 'documents_that_lie and observed'",
            ),
            "the tensors that must be there": (
                "    _match(spans, _expected(groups, items, rows))",
                "    pass",
                f"{HEADERS} -k 'tensors_that_lie and filler'",
            ),
            "dtype and shape of each": (
                "if span.dtype != tag or (shape is not None and span.shape != shape):",
                "if False:",
                f"{HEADERS} -k 'tensors_that_lie and wrong'",
            ),
            "tensors of no column": (
                "        if name not in expected and not (",
                "        if False and not (",
                f"{DOCUMENTS} -k 'documents_that_lie and kind'",
            ),
            "costs": (
                "    if not ((costs >= 0) & (costs <= MAX_ITEM_COST_S)).all():",
                "    if False:",
                f"{DOCUMENTS} -k 'tables_that_lie and cost'",
            ),
            "the key": (
                '    if key != meta["key"]:',
                "    if False:",
                f"{DOCUMENTS} -k 'documents_that_lie and recipe'",
            ),
            "leaves and columns": (
                'tree.count_leaves(entry["tree"]) != len(specs):',
                "False:",
                f"{DOCUMENTS} -k documents_that_lie",
            ),
            "two columns of one name": (
                "            if not expected.keys().isdisjoint(parts):",
                "            if False:",
                f"{DOCUMENTS} -k two_columns",
            ),
            "row counts": (
                "    if items and (counts.min() < 0 or counts.max() > rows):",
                "    if False:",
                f"{DOCUMENTS} -k 'tables_that_lie and row'",
            ),
            "the sum of the row counts": (
                "if (int(past[-1]) if items else 0) != rows or (past[1:] < past[:-1]).any():",
                "if False:",
                f"{DOCUMENTS} -k 'tables_that_lie and row'",
            ),
            "items that stand twice": (
                "    if has_twice(digests):",
                "    if False:",
                f"{DOCUMENTS} -k item_that_stands_twice",
            ),
        },
    ),
    *mutants(
        "artifact/observed.py",
        f"{DOCUMENTS} -k observed_inputs_that_lie",
        {
            "the bound of what is unpacked": (", validate=True), MAX_TEXT_BYTES)", ", validate=True))"),
            "the bound of inputs": ('.split("\\0", len(_NAMES) * MAX_INPUTS)', '.split("\\0")'),
            "the end of the stream": ("if not inflate.eof or inflate.unused_data or", "if"),
        },
    ),
    *mutants(
        "artifact/rows.py",
        ATTACKS,
        {
            "what was observed": (
                "    _ = header.observed",
                "    _ = 0",
                f"{DOCUMENTS} -k observed_inputs_that_lie",
            ),
            "groups that do not exist": (
                "            if len(counted) != len(seen):",
                "            if False:",
                f"{DOCUMENTS} -k 'tables_that_lie and group'",
            ),
            "rows of the groups": (
                "        if seen.tolist() != [group.rows for group in header.groups]:",
                "        if False:",
                f"{DOCUMENTS} -k 'tables_that_lie and group'",
            ),
            "the axis of ragged values": (
                "    if span.shape != ((total, dtype.itemsize) if has_byte_axis else (total,)):",
                "    if False:",
                f"{HEADERS} -k 'tensors_that_lie and flat'",
            ),
            "offsets that rise": (
                " or (offsets[1:] < offsets[:-1]).any():",
                ":",
                f"{DOCUMENTS} -k 'tables_that_lie and offsets'",
            ),
            "the first offset": (
                "if offsets[0] != last or (",
                "if (",
                f"{DOCUMENTS} -k 'tables_that_lie and offsets'",
            ),
            "the last offset": (
                "    if last != total:",
                "    if False:",
                f"{DOCUMENTS} -k 'tables_that_lie and offsets'",
            ),
            "shapes below 0": (
                "if (shapes < 0).any() or (np",
                "if (np",
                f"{DOCUMENTS} -k 'tables_that_lie and shapes'",
            ),
            "shapes and offsets": (
                "            if (shapes.prod(axis=1) != np.diff(offsets)).any():",
                "            if False:",
                f"{DOCUMENTS} -k 'tables_that_lie and shapes'",
            ),
        },
    ),
    *mutants(
        "folder.py",
        "tests/unit/test_folder.py",
        {
            "what stays free of downloads": (
                "if there.f_blocks and left_bytes <",
                "if False and left_bytes <",
            ),
            "the instance": ("_instance(candidate) == instance:", "True:"),
            "the digest of a download": ("    if hasher.hexdigest() != digest:", "    if False:"),
            "the size of a download": ("    if size != size_bytes:", "    if False:"),
            "the name of a download": ("            os.replace(name, path)", "            pass"),
        },
    ),
]
