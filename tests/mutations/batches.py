"""Batches: what keeps mapped rows the consumer's own, of the right file, and few; and copies to a device."""

from __future__ import annotations

from mutations.mutant import mutants

MAPPED = "tests/unit/test_gather_pages.py"
COPIED = "tests/unit/test_gather_pages_copied.py"
PAGES = f"{MAPPED} {COPIED}"
HELD = "tests/e2e/test_batches_held.py"
DEVICE = "tests/unit/test_loader_device.py"

MUTANTS = [
    *mutants(
        "data/pages.py",
        PAGES,
        {
            "files that only this job has": (
                'self.open(os.fsencode(artifact.way or "")',
                'self.open(os.fsencode(artifact.path or "")',
                "tests/unit/test_pages_spilled.py",
            ),
            "another file by the same number": (
                "if artifact.is_file(os.makedev(major, minor), inode, size):",
                "if True:",
                "tests/unit/test_pages_spilled.py",
            ),
            "that nothing is filled beside who looks": (
                "        if is_filled:\n",
                "        if True:\n",
                f"{MAPPED} -k page_table",
            ),
            "that it is filled ahead": (
                "        if is_filled:\n",
                "        if False:\n",
                f"{MAPPED} -k page_table",
            ),
            "that maps are private": (
                "_PLACE = mmap.MAP_PRIVATE | 0x10",
                "_PLACE = mmap.MAP_SHARED | 0x10",
                f"{MAPPED} -k holds_the_rows",
            ),
            "the end of a run of neighbours": (
                "np.not_equal(begins[1:], begins[:-1] + self._row_bytes, out=is_first[1:])",
                "is_first[1:] = False",
                f"{MAPPED} -k holds_the_rows",
            ),
            "the end of a run at the end of a file": (
                "is_first[1:] |= part[1:] != part[:-1]",
                "pass",
                f"{MAPPED} -k next_place_of_another",
            ),
            "that the file is the artifact's": (
                "if artifact.is_file(os.makedev(major, minor), inode, size):",
                "if True:",
                f"{PAGES} -k another_file",
            ),
            "that nothing is kept open": (
                "            for fd in fds.values():\n                calls.close(fd)",
                "            pass",
                f"{MAPPED} -k holds_the_rows",
            ),
            "the bound of the maps": (
                "if _live_maps() + len(first) > MAX_MAPS:",
                "if False:",
                f"{COPIED} -k up_to_a_bound",
            ),
            "the bound of open files": (
                "if len(fds) == MAX_OPEN:",
                "if False:",
                f"{MAPPED} -k few_files",
            ),
            "files that batches look into": (
                "return set().union(*(one.files for one in _living()))",
                "return set()",
                f"{MAPPED} -k files_are_those",
            ),
            "what a child forgets": (
                "os.register_at_fork(after_in_child=_after_fork_in_child)",
                "",
                f"{MAPPED} -k forked_child",
            ),
            "a process that has too many files open": (
                "if error in (errno.EMFILE, errno.ENFILE):",
                "if False:",
                f"{COPIED} -k for_the_moment",
            ),
            "the look at what was written to": (
                "found += bool(entry & (_PRESENT | _SWAPPED)) and not entry & _OF_A_FILE",
                "pass",
                f"{COPIED} -k soon_given_copies",
            ),
        },
    ),
    *mutants(
        "data/supply.py",
        HELD,
        {"what a batch looks into": ("if free and (kept := pages.files()):", "if False:")},
    ),
    *mutants(
        "data/default_collate.py",
        PAGES,
        {
            "that torch's collation is given mapped rows": (
                "return to_tensor(column.gather(picked, pool))",
                "return to_tensor(column.take(picked, column.empty(len(picked), pool)))",
                f"{MAPPED} -k batches_of_loaders",
            ),
        },
    ),
    *mutants(
        "data/buffers.py",
        PAGES,
        {
            "that memory of another kind is filled": (
                "self.is_plain = allocate is None",
                "self.is_plain = True",
                f"{COPIED} -k of_its_own_kind",
            ),
        },
    ),
    *mutants(
        "data/loader_cuda.py",
        DEVICE,
        {
            "that the consumer waits for the copy": ("stream.wait_event(done)", "pass"),
            "that the device's memory is the consumer's": (
                "lambda tensor: tensor.record_stream(stream)",
                "lambda tensor: None",
            ),
            "that a buffer is kept until it is copied": (
                "self._in_flight.append((done, batch))",
                "self._in_flight.append((done, None))",
            ),
            "whether a copy has ended": ("self._in_flight[0][0].query()", "True"),
            "that a buffer is used again": ("self._in_flight[0][0].query()", "False"),
            "copies that are on their way when the loader goes": (
                "        done.synchronize()",
                "        pass",
            ),
            "which device was current": (
                "self._cuda.current_device() if device.index is None else device.index",
                "None",
            ),
            "the stream of copies": ("with self._cuda.stream(self._stream):", "if True:"),
            "what else a mapping holds": (
                "filled = copy.copy(batch)",
                "filled = type(children)(children)",
            ),
        },
    ),
]
