"""Every bound of the library, in one place. Units come last in each name.

The engine's own bounds have a twin in `cpp/limits.hpp`; a test compares the two.
"""

from __future__ import annotations

MIB = 1 << 20

# -- order -----------------------------------------------------------------------------------
order_count_max = 1 << 62
"""Largest number of samples: the permutation's halves are 31 bits each (docs/decisions)."""

mixture_slots = 4096
"""Slots of a mixture's period: weights are rounded to 1/4096 of all."""
shuffle_pairs = 1024
"""Pairs of epochs that the quality of a shuffle is estimated from, by looking at"""
shuffle_runs = 8
"""runs of"""
shuffle_run_samples = 128
"""samples that lie together in storage: 0.4 s in all."""

# -- index -----------------------------------------------------------------------------------
sidecar_bytes_verified_max = 256 * MIB
"""A sidecar up to this size has its checksum verified on load; above, `inspect --verify` does."""

scan_threads = 16
"""Threads that list folders and stat files: on shared storage each answer is a round trip."""
header_bytes_max = 1 * MIB
"""Longest header of a container that is parsed; a longer one is taken for damage."""

# -- plan ------------------------------------------------------------------------------------
window_samples_max = 1 << 15
"""Samples planned in one vectorised pass: large enough to amortise numpy, small enough (1 ms)
not to delay a step."""
window_steps_max = 64
"""Steps planned in one pass."""
run_bytes_max = 4 * MIB
"""Most bytes one merged read covers; a bounce buffer for O_DIRECT must hold it."""
run_extents_max = 256
"""Most extents one merged read scatters to: below IOV_MAX (1024) also when each extent is
followed by a gap, 2 * 256 <= 1024."""
gap_bytes_default = 16 * 1024
"""Unwanted bytes between two wanted extents that are cheaper to read than to skip."""

# -- engine ----------------------------------------------------------------------------------
threads_max = 256
"""Most threads of one engine."""
open_files_max = 4096
"""Files an engine keeps open; a dataset of more files opens each file for each read."""
ring_entries = 64
"""Operations one io_uring has in flight."""
mmap_extent_bytes_max = 32 * 1024
"""Above this mean extent, copying from a map costs more than pread (page faults)."""

# -- loader ----------------------------------------------------------------------------------
readahead_bytes_default = 256 * MIB
"""Bytes of batches requested or ready but not yet handed over, unless the budget says."""
readahead_steps_max = 64
"""Steps requested or ready but not yet handed over, however small they are."""
readahead_cached_bytes_max = 32 * MIB
readahead_cached_steps_max = 16
"""The same for data in the page cache, which arrives at once: batches further ahead would only
push each other out of the processor's caches. Four steps are allowed however large they are."""
lent_slots_max = 4
"""Batches of one worker process that the user holds in shared memory; further ones are copied, so
that keeping batches does not use up descriptors (two each)."""

assert 2 * run_extents_max <= 1024, "a merged read needs one iovec per extent and one per gap"
assert readahead_steps_max <= window_steps_max, "a window must cover the read-ahead"
