"""Every bound of the library, in one place. Units come last in each name.

The engine's own bounds have a twin in `cpp/ground/limits.hpp`; a test compares the two.
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

apart_silent_s = 120
"""How long a library in another process may work on a file without reading any of it."""
apart_memory_fraction = 0.25
"""Of the machine's memory: what that process may allocate; beyond it, the file is damaged."""

# -- codecs ----------------------------------------------------------------------------------
decoded_chunks_bytes_max = 256 * MIB
"""Bytes of compressed chunks that are kept decoded; the least recently used are dropped first."""
decoded_chunk_bytes_max = 4096 * MIB
"""Most bytes that a compressed chunk may claim to decode to; more counts as damage."""

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
remote_threads = 64
"""Reads in flight from storage that is not local, unless the budget says: a read takes about 0.5 ms
there, most of it waiting, so fewer leave the storage idle (docs/decisions/0009)."""
open_files_max = 4096
"""Files an engine keeps open; a dataset of more files opens each file for each read."""
replay_threads_max = 1024
"""Threads of a recorded job that are replayed at the same time."""
ring_entries = 64
"""Operations one io_uring has in flight."""
mmap_extent_bytes_max = 32 * 1024
"""Above this mean extent, copying from a map costs more than pread (page faults)."""

# -- object stores ---------------------------------------------------------------------------
object_requests_default = 64
"""Requests in flight: at 20 ms each and 100 KB this is 320 MB/s."""
object_requests_max = 1024
"""Most requests in flight; each has a thread, which waits."""
object_gap_bytes = 256 * 1024
"""Unwanted bytes between two wanted extents of an object that are cheaper to read than to ask
again for. A request waits 20 ms, but 64 wait at once: it costs 0.3 ms, in which all of them share
what the link brings, 40 KB on 1 Gbit/s and 400 KB on 10 (docs/objects.md)."""
object_inflight_bytes = 128 * MIB
"""Bytes of answers on their way, beyond which a request waits, whatever their number."""
object_connect_s = 5
object_stall_s = 10
"""How long a connection may take to be made, and an answer to make progress."""
object_deadline_s = 60
"""How long a read is retried before it fails with ETIMEDOUT."""
object_listing_deadline_s = 30
"""The same while data is opened, when a wrong name or endpoint should be seen soon."""
object_pause_s = 0.05
object_pause_s_max = 5.0
"""Before the first retry, and at most; each is a random part of twice the one before."""
object_part_bytes = 8 * MIB
"""Of an object that is written in parts: each is in memory while it is sent."""
object_parts = 8
"""Parts of an object on their way at once."""
object_parts_max = 9_000
"""Services take up to 10,000 parts; those of a larger object are larger."""

# -- peers -----------------------------------------------------------------------------------
peer_keys_max = 1 << 16
"""Keys of one fetch: a message of 1 MiB."""
peer_fetch_bytes = 8 * MIB
"""Bytes that one fetch asks for, unless one sample is larger: a step may ask for more than one."""
peer_piece_bytes = 1 * MIB
"""Answers travel in messages of this size, so that neither side holds more of one than it needs."""
peer_join_bytes = 64 * 1024
"""Parts of an answer below this are joined by copying: a message of its own costs more."""
peer_inflight_bytes = 32 * MIB
peer_inflight_fetches = 32
"""What a node has asked another one for, beyond which fetches wait; a larger one goes alone. 32 MiB
are 25 ms of a link of 10 Gbit/s."""
peer_messages_max = 64
"""Messages to or from one node in a queue: the pieces of so many bytes and fetches."""
peer_unanswered_max = 4 * peer_inflight_fetches
"""Requests of one node that wait for their answers; further ones are refused. More than are in
flight, because who asked may have given up on some."""
peer_length_max = 1 << 46
"""Most bytes that another node may expect of one key; more is taken for damage."""
peer_io_threads = 2
"""Threads that encrypt, decrypt and send: each does a connection's 500 MB/s or so."""
peer_sockets_max = 1 << 14
"""Three for each node that is asked."""
peer_timeout_s = 10.0
"""How long a fetch may take, from submit on."""
peer_connect_s = 3.0
"""How long a connection may take to be made,"""
peer_handshake_s = 10.0
"""and until both sides know each other: the other node answers in its loop."""
peer_heartbeat_s = 1.0
peer_silent_s = 3.0
"""How often a silent connection is tried, and how long it may stay silent before it is given up."""
peer_pause_s = 1.0
"""How long a node that is gone is not asked again: fetches fail at once meanwhile."""
peer_retry_s = 0.005
"""How often an answer is tried to be sent on to a node whose queue was full."""
peer_round_messages = 256
"""Messages taken from one socket before the others have their turn."""
peer_nap_s = 0.002
"""Most that a peer over MPI sleeps between looks, and as much later it may see a message: it sleeps
an eighth of the time that nothing has happened. With 2 ms it takes 2 % of a processor when idle."""
peer_leave_s = 1.0
"""How long a peer over MPI that is closed waits for the others to know."""

# -- cache -----------------------------------------------------------------------------------
cache_block_bytes_default = 64 * 1024
"""Neighbouring small samples that are read and kept together where storage cannot be measured: with
64 reads of 0.5 ms in flight this is 8 GB/s."""
cache_block_bytes_min = 4 * 1024
"""Least that is chosen where it can: less would read the same page of storage several times, and a
cache block takes 8 bytes of a table and up to 63 of padding."""
cache_block_bytes_max = 1 * MIB
"""Most that is chosen: with a batch of 100 samples the first step of a run reads 100 MiB."""
cache_blocks_min = 1024
"""Cache blocks of a data set, unless it has fewer samples: coarser ones are dealt unevenly."""
cache_block_probe_fraction = 1 / 256
"""Of a data set, what is read to choose: every byte is to leave storage once."""
cache_block_probe_bytes_min = 1 * MIB
"""Storage is not measured with less than this: where reads are fast it would say nothing."""
cache_blocks_looked_at = 1 << 14
"""Cache blocks whose sizes are looked at, to know how many fit."""
disk_threads = 4
"""Threads that read and write the disk tier of a rank."""
slab_spare_bytes = 1 * MIB
"""Of a slab that holds all of a data set."""
replica_epochs = 32
"""How far it is looked ahead to when a sample is used again: with N ranks that is after N epochs,
on average."""
replica_pages = 8
"""Copies of samples lie in pages, of this fraction of a mean sample: half a page of each is lost,
6 %."""
replica_pages_max = 64
"""Pages of one sample; what is larger is not copied."""
busy_cache_block_s = 30.0
"""How long a cache block that another rank of the host reads is waited for, before it is read anew."""

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

# -- schedules -----------------------------------------------------------------------------------
pattern_cycles_max = 1 << 15
"""Cycles of all jobs in one pattern of transfers: a search makes some hundred patterns."""
simulated_transfers = 1 << 13
"""Transfers, about, by which an online rule is judged: a quarter of a second."""
simulated_transfers_max = 1 << 20
"""Transfers that a simulation of an online rule may take: half a minute."""

schedule_nodes_max = 1 << 20
"""Readers, targets or resources of one schedule of accesses."""

schedule_jobs_max = 10_000
"""Jobs in a file of `penstock schedule`."""

schedule_tasks_max = 1_000
"""Tasks of one job, and resources, in a file of `penstock schedule`."""

schedule_file_bytes_max = 1 * MIB
"""Size of a file of `penstock schedule`."""

# -- dispatch ------------------------------------------------------------------------------------
unit_bytes_default = 1 * MIB
"""What goes to storage as one, where requests of several purposes wait: it cannot be interrupted,
so a demand waits for so many bytes of something else (0.3 ms at 3 GB/s)."""
queued_bytes_default = 16 * MIB
"""Bytes under way to one target."""
pieces_max = 1 << 16
"""Pieces of requests that wait or are under way: 64 GiB of the default unit."""
patience_ns_max = 60_000_000_000
"""Longest time for which a request may be overtaken by more urgent ones that come later."""

mirror_pause_s = 5.0
"""How long a place is not asked that did not bring what another one did, while others have it."""

# -- tiers ---------------------------------------------------------------------------------------
disk_buffers_bytes_max = 64 * MIB
"""Buffers of the disk tier that are kept to be used again."""

# -- checkpoints ---------------------------------------------------------------------------------
checkpoint_piece_bytes = 64 * MIB
checkpoint_piece_bytes_min = 8 * MIB
"""Tensors are cut so for the ranks that write them: smaller pieces would cost requests."""
checkpoint_pieces = 8
"""Pieces of each rank, about, where that is between these: the last is an eighth of its share."""
checkpoint_requests = 16
"""Pieces that are read from an object store at once."""
checkpoint_claims = 8
"""Claims of jobs that stay in an object store."""

# -- measuring -----------------------------------------------------------------------------------
residency_files_max = 1024
residency_s = 0.25
"""Files asked whether they are in the page cache, and how long that may take."""
ceiling_s = 0.25
"""How long one measurement of the machine goes on: a decode function, opening, writing."""
cold_s = 0.15
"""How long it may take to drop what is to be read cold; what is left is not read."""
ceiling_samples_bytes_max = 64 * MIB
ceiling_samples_max = 64
"""Samples that are read to be decoded again and again."""
ceiling_files_max = 512
"""Files that are opened again and again."""
ceiling_written_bytes = 8 * MIB
"""What is written and synced at a time."""

# -- convert -------------------------------------------------------------------------------------
shard_bytes_default = 256 * MIB
"""A shard that is written: large enough to be read at full speed, small enough to be moved."""
shards_max = 1_000_000
"""Shards of one conversion: their names, which have six digits, sort as their numbers do."""
commit_bytes_max = 64 * MIB
commit_samples_max = 10_000
"""What is written to an LMDB environment between two commits, and lost when that is ended."""

assert object_inflight_bytes >= run_bytes_max, "the longest run must be allowed"
assert peer_messages_max >= peer_inflight_bytes // peer_piece_bytes + peer_inflight_fetches, (
    "what a node may ask for must fit into the queues"
)
assert 2 * run_extents_max <= 1024, "a merged read needs one iovec per extent and one per gap"
assert readahead_steps_max <= window_steps_max, "a window must cover the read-ahead"

# -- the simulator ---------------------------------------------------------------------------------

network_paths_max = 1 << 25
"""Pairs of switches with traffic, times switches, of a simulated network: 3 GiB, some 10 s;"""
network_paths_divided_max = 1 << 21
"""where adaptive routing divides the traffic of each pair by itself: some 20 s."""
network_flows_max = 1 << 22
"""Pairs of nodes of a simulated network, all of which exchange: 2,048 nodes."""

# -- allocation ------------------------------------------------------------------------------------

allocation_number_min = 1e-12
allocation_number_max = 1e18
"""What a profile, share or resource may be, in its unit: beyond, it is a mistake, and products and
quotients of several would leave what floats hold."""

# -- the broker ------------------------------------------------------------------------------------

broker_line_bytes = 4096
"""Longest line that a broker or a job takes; reports take some 400."""
broker_state_bytes = 1 * MIB
"""Longest line that somebody who watches a broker takes: 300 bytes a member."""
broker_waiting_bytes = 2 * MIB
"""What is kept for somebody who does not read, before the connection is closed."""
broker_members_max = 512
"""Connections of one broker; further ones are refused."""
broker_unproven_max = 64
broker_proof_s = 5.0
"""How many may be connected over a network who have not shown that they have the key yet, and how
long they have for it."""
broker_gather_s = 5.0
"""How long after a broker of several hosts is back a host takes no more than its floor: by then the
others have found it, too."""
broker_transfers_max = 64
"""Transfers of one connection at a time."""
broker_tick_s = 0.25
"""How late it may be seen that a member has fallen silent;"""
broker_nap_ns = 100_000_000
"""and at most, that somebody has said something: what eight jobs say wakes it up half as often."""
broker_answer_s = 10.0
"""Who watches a broker hears from it every second; after so long it is taken for stopped."""
broker_retry_s = 2.0
"""How often a loader without a broker looks for one."""
grant_wait_s = 1.0
"""How long a transfer waits for its first grant: a broker that is there answers at once."""
lease_readahead_s = 2.0
lease_readahead_bytes_min = 1 * MIB
"""What a loader with a lease reads ahead, at most: for so long what it is leased brings, and at
least so much. More would only hold back those that wait for the rate."""
