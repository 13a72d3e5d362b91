"""What is taken away from the product, by name, and the test that must notice."""
# ruff: noqa: E501

import struct
from dataclasses import dataclass

from prepcache.keys.encoding.builtins import int_bytes
from prepcached.store.queries import generation_of
from sabotage.patching import Make, becomes, gives, nothing, unchecked, without


@dataclass(frozen=True)
class Sabotage:
    """
    Args:
        name: what no longer holds.
        target: what is replaced: `module:name` or `module:Class.name`.
        make: its replacement, given the original.
        caught_by: the test that must fail.
    """

    name: str
    target: str
    make: Make
    caught_by: str


# fmt: off
SABOTAGES = [
    # artifact
    Sabotage("columns begin anywhere in their files", "prepcache.artifact.header:_border_bytes", gives(64), "tests/unit/test_artifact_leaves.py::test_columns_start_on_their_borders"),
    Sabotage("an artifact's announced size is not compared", "prepcache.artifact.header:read_header", unchecked("size != size_bytes"), "tests/unit/test_artifact_attacks.py::test_announced_size_is_compared"),
    Sabotage("bytes after the last tensor are ignored", "prepcache.artifact.header:read_header", unchecked("span.end"), "tests/unit/test_artifact_attacks.py::test_a_file_of_another_length_than_its_header_says"),
    Sabotage("another format version is read", "prepcache.artifact.header:_parse", unchecked("'version'"), "tests/unit/test_artifact_attacks.py::test_another_version_is_refused_by_name"),
    Sabotage("an artifact's key is believed", "prepcache.artifact.header:_read", unchecked("document.key"), "tests/unit/test_artifact_attacks.py::test_documents_that_lie"),
    Sabotage("any cost is taken", "prepcache.artifact.header:_read", unchecked("costs >= 0"), "tests/unit/test_artifact_attacks.py::test_tables_that_lie"),
    Sabotage("an item table of any length is read", "prepcache.artifact.header:read_header", unchecked("items > max_items"), "tests/unit/test_artifact_attacks.py::test_a_longer_item_table_is_not_read"),
    Sabotage("an item may stand twice in an artifact", "prepcache.artifact.header:has_twice", gives(False), "tests/unit/test_artifact_attacks.py::test_items_of_equal_beginnings_do_not_keep_the_interpreter"),
    Sabotage("an item may have any number of rows", "prepcache.artifact.header:_check_items", unchecked("counts.min"), "tests/unit/test_artifact_attacks.py::test_tables_that_lie"),
    Sabotage("tensors need not be those of the columns", "prepcache.artifact.header:read_header", unchecked("head != raw"), "tests/unit/test_artifact_attacks.py::test_tensors_that_lie"),
    Sabotage("rows' tables are not proved", "prepcache.artifact.reader:check_rows", nothing, "tests/unit/test_artifact_attacks.py::test_tables_that_lie"),
    Sabotage("ragged columns' offsets are not proved", "prepcache.artifact.reader:_check_ragged", nothing, "tests/unit/test_artifact_attacks.py::test_tables_that_lie"),
    Sabotage("a merge forgets what was observed", "prepcache.artifact.writer:_union", gives([]), "tests/unit/test_artifact_files.py::test_observed_inputs_are_joined_unless_they_differ"),
    Sabotage("any text may name a recipe", "prepcache.digests:is_hex64", gives(True), "tests/unit/test_artifact_attacks.py::test_documents_that_lie"),
    Sabotage("an entry's key has no domain", "prepcache.digests:KEY_DOMAIN", becomes(b""), "tests/golden/test_canonical_vectors.py::test_the_key_of_an_entry_is_pinned"),
    # keys
    Sabotage("numbers are keyed in single precision", "prepcache.keys.encoding.builtins:_FLOAT", lambda pack: lambda tag, value: tag + struct.pack(">f", value), "tests/golden/test_canonical_vectors.py::test_the_bytes_of_a_value_are_those_of_the_version"),
    Sabotage("an int is keyed without its sign", "prepcache.keys.encoding.builtins:_INT", lambda pack: lambda tag, value: pack(tag, abs(value)), "tests/golden/test_canonical_vectors.py::test_the_bytes_of_a_value_are_those_of_the_version"),
    Sabotage("a text is keyed without its case", "prepcache.keys.encoding.builtins:text_bytes", lambda f: lambda value: f(value.lower()), "tests/golden/test_canonical_vectors.py::test_the_bytes_of_a_value_are_those_of_the_version"),
    Sabotage("a bool is keyed as an int", "prepcache.keys.encoding.builtins:WRITERS", lambda table: {**table, bool: lambda _, value, put: put(int_bytes(int(value)))}, "tests/golden/test_canonical_vectors.py::test_the_bytes_of_a_value_are_those_of_the_version"),
    Sabotage("attributes beside an adapted base do not count", "prepcache.keys.encoding.builtins:attributes_of", gives({}), "tests/unit/test_values.py::test_a_value_counts_by_all_of_its_state"),
    Sabotage("what a built-in base holds does not count", "prepcache.keys.encoding.builtins:_CONTENT", lambda table: {kind: lambda value: None for kind in table}, "tests/unit/test_values.py::test_a_value_counts_by_all_of_its_state"),
    Sabotage("attributes of objects do not count", "prepcache.keys.code.dependencies:Dependencies.refer_object", lambda f: lambda self, value, pairs, *more, **how: f(self, value, [], *more, **how), "tests/unit/test_values.py::test_a_value_counts_by_all_of_its_state"),
    Sabotage("a record of the stat cache is believed unchecked", "prepcache.keys.files.stat_cache:_Segment.get", unchecked("mix(record[:9])"), "tests/unit/test_stat_cache.py::test_a_corrupt_segment_never_answers_wrong"),
    Sabotage("what a function opens is not noted", "prepcache.keys.observation.watches:present", gives(()), "tests/unit/test_observe.py::test_the_names_in_a_listed_folder_are_an_input"),
    Sabotage("what a library calls asks for nothing", "prepcache.keys.observation.calls:asks_for_others", gives(False), "tests/unit/test_observe_asked.py::test_the_first_question_of_another_module_counts"),
    Sabotage("what is reached asks for nothing", "prepcache.keys.code.names:Questions.may_ask", gives(False), "tests/unit/test_observe_asked.py::test_the_first_question_of_another_module_counts"),
    Sabotage("only the first of several uses of a file is named", "prepcache.keys.observation.observer:Observer._names_of", lambda f: lambda self, seen: f(self, seen)[:1], "tests/unit/test_observe_roots.py::test_a_copied_project_is_checked_against_its_own_files"),
    Sabotage("an error where something is noted is swallowed", "prepcache.keys.observation.watches:fail", nothing, "tests/unit/test_observe_errors.py::test_an_error_where_something_is_noted_fails_closed"),
    Sabotage("what an earlier item read is not looked at again", "prepcache.keys.observation.observer:Observer._settle", lambda f: lambda self, path, *seen: path in self._last or f(self, path, *seen), "tests/unit/test_observe.py::test_a_known_file_changed_while_it_is_read_never_matches"),
    Sabotage("what cannot be told apart is kept", "prepcache.keys.observation.watches:refuse", nothing, "tests/unit/test_observe.py::test_what_cannot_be_told_apart_is_not_stored"),
    Sabotage("a tuple is keyed as a list", "prepcache.keys.encoding.builtins:WRITERS", lambda table: {**table, tuple: lambda encoder, value, put: encoder.walk([*value], put)}, "tests/golden/test_canonical_vectors.py::test_the_bytes_of_a_value_are_those_of_the_version"),
    Sabotage("bytes are keyed without their length", "prepcache.keys.encoding.builtins:SIMPLE", lambda table: {**table, bytes: lambda value: b"b" + value}, "tests/golden/test_canonical_vectors.py::test_the_bytes_of_a_value_are_those_of_the_version"),
    # auth and peers
    Sabotage("no token is asked for over TCP", "prepcached.auth:Auth._check_token", nothing, "tests/contract/test_api_tcp.py::test_without_the_token_nothing_is_answered_but_liveness"),
    Sabotage("the beginning of a token is enough", "prepcached.auth:secrets", without(compare_digest=lambda shown, token: bool(shown) and token.startswith(shown)), "tests/contract/test_api_tcp.py::test_without_the_token_nothing_is_answered_but_liveness"),
    Sabotage("any page may send requests", "prepcached.auth:Auth.caller", unchecked("_split(origin)"), "tests/contract/test_api_tcp.py::test_a_foreign_origin_is_refused_and_an_own_one_is_not"),
    Sabotage("the port is reached under any name", "prepcached.auth:Auth.caller", unchecked("self._hosts"), "tests/contract/test_api_tcp.py::test_a_foreign_name_is_refused"),
    Sabotage("anybody may purge what others own", "prepcached.auth:Caller.check_may_change", nothing, "tests/contract/test_api_inspection.py::test_another_user_may_look_but_neither_purge_nor_pin"),
    Sabotage("users share all entries though they are apart", "prepcached.auth:Auth.scope", gives(""), "tests/contract/test_api_isolation.py::test_a_user_is_given_what_he_made_and_nothing_of_anothers"),
    Sabotage("users see all entries though they are apart", "prepcached.auth:Auth._confined_to", nothing, "tests/contract/test_api_isolation.py::test_a_user_is_given_what_he_made_and_nothing_of_anothers"),
    Sabotage("users who cannot be told apart share", "prepcached.auth:Auth.caller", unchecked("NOBODY_UID"), "tests/contract/test_api_isolation.py::test_users_who_cannot_be_told_apart_are_refused"),
    Sabotage("every user of the socket is root", "prepcached.auth:Peer.of", lambda f: classmethod(lambda cls, connection: cls(0, 0)), "tests/unit/test_listen.py::test_a_unix_peer_is_who_the_kernel_says"),
    Sabotage("a death is told to nobody", "prepcached.auth:Peer.open_pidfd", gives(None), "tests/contract/test_api_lifetimes.py::test_a_session_ends_with_its_process"),
    # leases
    Sabotage("a lease's token is not compared", "prepcached.leases:LeaseTable._fenced", lambda f: lambda self, session, lease, token: f(self, session, lease, self._leases[lease].token if lease in self._leases else token), "tests/unit/test_leases_daemon.py::test_a_lease_acts_with_its_token_and_in_its_session_only"),
    Sabotage("a lease acts in any session", "prepcached.leases:LeaseTable._fenced", lambda f: lambda self, session, lease, token: f(self, self._leases[lease].session if lease in self._leases else session, lease, token), "tests/unit/test_leases_daemon.py::test_a_lease_acts_with_its_token_and_in_its_session_only"),
    Sabotage("leases never lapse", "prepcached.leases:LeaseTable.lapse", nothing, "tests/property/test_lease_machine.py"),
    Sabotage("who is behind is granted leases", "prepcached.leases:LeaseTable.grant", unchecked("generation < self.generation(recipe)"), "tests/property/test_lease_machine.py"),
    Sabotage("a session may have any number of leases", "prepcached.leases:LeaseTable.grant", unchecked("MAX_LEASES"), "tests/unit/test_leases_daemon.py::test_leases_and_leased_items_are_bounded"),
    Sabotage("a lease is committed twice at once", "prepcached.leases:LeaseTable.begin_commit", unchecked("lease.is_committing"), "tests/property/test_lease_machine.py"),
    Sabotage("leased items are granted again", "prepcached.leases:LeaseTable.leased", gives({}), "tests/property/test_lease_machine.py"),
    Sabotage("a session's end frees no lease", "prepcached.leases:LeaseTable.end_session", nothing, "tests/property/test_lease_machine.py"),
    Sabotage("what is being committed is freed", "prepcached.leases:LeaseTable._end", lambda f: lambda self, leases: [self._free(lease) for lease in leases], "tests/property/test_lease_machine.py"),
    Sabotage("beats alone keep a lease for ever", "prepcached.leases:STALL_S", becomes(float("inf")), "tests/unit/test_leases_daemon.py::test_beats_without_progress_keep_a_lease_only_for_so_long"),
    Sabotage("a commit leaves its items leased", "prepcached.leases:LeaseTable.finish_commit", lambda f: lambda self, commit, committed, generation: f(self, commit, (), generation), "tests/property/test_lease_machine.py"),
    Sabotage("a commit raises no generation", "prepcached.leases:LeaseTable.finish_commit", lambda f: lambda self, commit, committed, generation: f(self, commit, committed, 0), "tests/property/test_lease_machine.py"),
    Sabotage("nobody is told of freed items", "prepcached.leases:LeaseTable.__init__", lambda f: lambda self, clock, *listeners: f(self, clock), "tests/property/test_lease_machine.py"),
    Sabotage("a costly lease lives no longer", "prepcached.leases:Lease.span_s", becomes(property(lambda self: 15.0)), "tests/property/test_lease_machine.py"),
    Sabotage("a lease that its client never heard of stays", "prepcached.leases:LeaseTable.forsake", nothing, "tests/property/test_lease_machine.py"),
    Sabotage("a lease is released by anybody", "prepcached.leases:LeaseTable.release", lambda f: lambda self, session, lease, token: self._free(self._leases[lease]), "tests/unit/test_leases_daemon.py::test_a_lease_acts_with_its_token_and_in_its_session_only"),
    Sabotage("work is committed rarely", "prepcache.fill.share:COMMIT_S", becomes(30.0), "tests/e2e/test_fill_steps.py::test_uncommitted_work_stays_below_5_s_or_2_percent"),
    # eviction and holds
    Sabotage("less than what is needed is evicted", "prepcached.store.eviction:evict", unchecked("< need_bytes"), "tests/contract/test_quotas.py::test_nothing_of_his_goes_for_a_write_that_will_not_fit"),
    Sabotage("what is held is evicted", "prepcached.store.eviction:idle_of", lambda f: lambda coldest, need, is_protected: f(coldest, need, lambda digest: False), "tests/unit/store/test_store_removal.py::test_a_purge_that_frees_bytes_goes_in_batches"),
    Sabotage("the hottest entries are evicted first", "prepcached.store.eviction:idle_of", lambda f: lambda coldest, need, is_protected: f(reversed([*coldest]), need, is_protected), "tests/unit/store/test_store_eviction.py::test_the_least_recently_used_goes"),
    Sabotage("the disk may run full", "prepcached.store.records:Ledger.limit", lambda f: lambda self, *free_bytes: self.max_bytes, "tests/unit/store/test_staging.py::test_a_commit_needs_no_second_room_on_a_full_disk"),
    Sabotage("only live entries count against the budget", "prepcached.store.records:Ledger.on_disk", becomes(property(lambda self: self.live_bytes)), "tests/unit/store/test_store_eviction.py::test_staged_bytes_count_and_removed_ones_too"),
    Sabotage("what is promised may be promised again", "prepcached.store.records:Ledger.shortfall", lambda f: lambda self, size, *free: f(self, size, *free) - self.reserved_bytes, "tests/unit/store/test_store_eviction.py::test_an_upload_has_the_room_that_it_announced"),
    Sabotage("housekeeping keeps nothing free", "prepcached.store.records:Ledger.headroom", gives(0), "tests/unit/store/test_store_eviction.py::test_the_background_makes_room_ahead"),
    Sabotage("a hold never weakens", "prepcached.store.records:Holds.is_held", lambda f: lambda self, digest, now: self.count(digest) > 0, "tests/unit/store/test_store_eviction.py::test_a_hold_nobody_touched_for_long_is_weak"),
    Sabotage("holds protect nothing", "prepcached.store.records:Holds.is_held", gives(False), "tests/unit/store/test_store_removal.py::test_a_purge_that_frees_bytes_goes_in_batches"),
    Sabotage("a session that lets go keeps its holds", "prepcached.store.records:Holds.drop", nothing, "tests/unit/store/test_store_eviction.py::test_a_write_is_declined_when_everything_is_held_or_pinned"),
    Sabotage("unlinked files that are mapped take no room", "prepcached.store.records:Holds.unlinked_bytes", gives(0), "tests/unit/store/test_store_removal.py::test_replaced_bytes_come_back_when_they_are_committed_again"),
    Sabotage("sessions are not asked to let go", "prepcached.store.records:Holds.to_let_go", gives([]), "tests/unit/store/test_store_removal.py::test_replaced_bytes_come_back_when_they_are_committed_again"),
    Sabotage("a touch keeps no hold", "prepcached.store.records:Holds.touch", gives([]), "tests/unit/store/test_store_eviction.py::test_a_hold_nobody_touched_for_long_is_weak"),
    Sabotage("an eviction does not look again at holds", "prepcached.store.eviction:idle_still", lambda f: lambda core, rows: list(rows), "tests/unit/store/test_store_removal.py::test_what_is_wanted_since_it_was_chosen_stays"),
    Sabotage("room is not given back", "prepcached.store.eviction:_promise", lambda f: lambda core, size, *of: f(core, abs(size), *of), "tests/unit/store/test_store_eviction.py::test_the_least_recently_used_goes"),
    Sabotage("eviction ahead makes room for merges", "prepcached.store.core:Core.free_bytes", lambda f: lambda core: core.disk.free_bytes(), "tests/unit/store/test_store_merge.py::test_nothing_is_evicted_for_a_merge_under_way"),
    # durability
    Sabotage("a folder is not synced after a rename", "prepcached.store.durable:fsync_folder", nothing, "tests/crash/test_store_kill.py::test_each_step_is_durable_before_the_next"),
    Sabotage("a staged file is not synced", "prepcached.store.staging:os", without("fsync"), "tests/crash/test_store_kill.py::test_each_step_is_durable_before_the_next"),
    Sabotage("a small file is not synced", "prepcached.store.durable:os", without("fsync"), "tests/crash/test_store_kill.py::test_each_step_is_durable_before_the_next"),
    Sabotage("a file is placed before it is checked again", "prepcached.store.staging:still_the_same", nothing, "tests/unit/store/test_staging.py::test_a_staged_name_replaced_after_hashing_is_refused"),
    Sabotage("a staged file may change while it is hashed", "prepcached.store.staging:identity", gives(()), "tests/unit/store/test_staging.py::test_a_change_while_it_is_hashed_is_refused"),
    Sabotage("any file is taken as staged", "prepcached.store.staging:_what_is_wrong", nothing, "tests/unit/store/test_staging.py::test_what_is_not_as_it_was_announced_is_refused"),
    Sabotage("whose an artifact is is not marked on its file", "prepcached.store.staging:mark", nothing, "tests/unit/store/test_recovery.py::test_a_file_that_cannot_be_marked_is_not_shared"),
    Sabotage("a commit may bring items that were not leased", "prepcached.store.commit:_check_items", nothing, "tests/unit/store/test_store.py::test_a_file_of_another_recipe_is_refused"),
    Sabotage("a failed commit leaves its file", "prepcached.store.eviction:unlink_if_absent", nothing, "tests/property/test_store_machine.py"),
    Sabotage("a refresh replaces nothing", "prepcached.store.commit:_replaced", gives([]), "tests/unit/store/test_store_editions.py::test_a_refresh_replaces_what_it_overlaps"),
    Sabotage("a commit raises no generation of the recipe", "prepcached.store.queries:raise_generation", lambda f: lambda conn, recipe, is_removal: generation_of(conn, b""), "tests/unit/store/test_store_recipes.py::test_a_recipe_that_returns_has_a_newer_generation"),
    Sabotage("observed inputs of any size are kept", "prepcached.store.commit:_check_observed", nothing, "tests/unit/store/test_store_observed.py::test_what_a_recipe_observed_fits_into_one_answer"),
    Sabotage("a lost file's row stays", "prepcached.store.eviction:lose", nothing, "tests/unit/store/test_store_scrub.py::test_a_lost_file_is_a_bad_one"),
    Sabotage("the scrub believes what it reads", "prepcached.store.integrity:read_whole", lambda f: lambda core, row, pace: True, "tests/unit/store/test_store_scrub.py::test_the_scrub_resumes_and_rests_between_rounds"),
    Sabotage("a removal leaves the file", "prepcached.store.eviction:unlink_object", gives(True), "tests/unit/store/test_store_removal.py::test_replaced_bytes_come_back_when_they_are_committed_again"),
    Sabotage("accounts are not kept", "prepcached.store.eviction:account", nothing, "tests/unit/store/test_store_removal.py::test_replaced_bytes_come_back_when_they_are_committed_again"),
    Sabotage("what was used is not written down", "prepcached.store.eviction:write_recency", nothing, "tests/unit/store/test_store_eviction.py::test_recency_is_written_behind"),
    # the tier
    Sabotage("a bucket or lead that fails is used on", "prepcached.tier.bucket:Outage.is_usable", becomes(property(lambda self: True)), "tests/contract/test_upstream.py::test_jobs_wait_five_seconds_an_hour"),
    Sabotage("jobs wait for a bucket without end", "prepcached.tier.bucket:Outage.note_lost", nothing, "tests/contract/test_upstream.py::test_jobs_wait_five_seconds_an_hour"),
    Sabotage("a lead may answer neither lease nor holders", "prepcached.tier.upstream:Upstream._lease", unchecked("answer.held"), "tests/contract/test_upstream.py::test_a_lead_that_lies_is_done_without"),
    Sabotage("what the bucket lost stays in its manifest", "prepcached.tier.tier:Tier._note_failed", unchecked("Absent"), "tests/contract/test_tier.py::test_a_lying_bucket_costs_only_the_work"),
    Sabotage("any bytes are taken from a bucket", "prepcached.tier.tier:Tier._download", unchecked("row.digest"), "tests/contract/test_tier.py::test_a_lying_bucket_costs_only_the_work"),
]
