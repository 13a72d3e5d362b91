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
            "that rows stay where they were": (
                "_MOVE = 1 | 2 | 4",
                "_MOVE = 1 | 2",
                f"{MAPPED} -k stays_where_it_was",
            ),
            "that all parts can be mapped": (
                "self._is_able = len(self._unread) == len(artifacts)",
                "self._is_able = True",
                f"{COPIED} -k once_more",
            ),
            "that batches can be written to": (
                "return bool(calls.protect(first, len(batch), _ACCESS) == 0)",
                "return True",
                f"{COPIED} -k kernel_refuses",
            ),
            "the end of a run of neighbours": (
                "np.not_equal(begins[1:], begins[:-1] + self._row_bytes, out=is_first[1:])",
                "is_first[1:] = False",
                f"{MAPPED} -k holds_the_rows",
            ),
            "the bound of the maps": (
                "if _live_maps() + len(first) > MAX_MAPS:",
                "if False:",
                f"{COPIED} -k up_to_a_bound",
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
        "data/loader.py",
        "tests/unit/test_loader.py -k another_ones_thread --timeout 20",
        {"whom no thread waits for": ("if threading.current_thread() not in _threads:", "if True:")},
    ),
    *mutants(
        "data/loader_cuda.py",
        DEVICE,
        {
            "that the consumer waits for the copy": ("stream.wait_event(done)", "pass"),
            "that the device's memory is the consumer's": (
                "        tensor.record_stream(stream)\n",
                "",
            ),
            "what is no dense tensor": (
                "return tensor.layout is torch.strided and not tensor.is_nested",
                "return True",
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
