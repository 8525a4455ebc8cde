"""Bounds and defaults of the whole library, in one place. Units come last in each name.

The engine's own bounds have a twin in `cpp/ground/limits.hpp`; a test compares the two.
"""

from __future__ import annotations

MIB = 1 << 20

# -- order -----------------------------------------------------------------------------------
order_count_max = 1 << 62
"""Largest number of samples: the permutation's halves are 31 bits each (docs/decisions)."""

selection_count_max = 1 << 40
"""Largest dataset that a selection is made of: its bitmap has 128 GiB."""
selection_chunk_samples = 1 << 17
"""Samples that one thread decides about at a time: their columns fit a core's cache."""
selection_text_bytes_max = 256 * MIB
"""Bytes of an array of texts, each as wide as the longest, if that is many times what they have."""
selection_read_bytes = 64 * MIB
"""Bytes that are read at a time of a field of texts that a condition names."""
selection_texts_bytes_max = 1 << 30
"""Most characters of different texts of a field, which a condition that names it holds."""
selection_bytes_inline_max = 16 * MIB
"""A selection up to this size is pickled with its dataset, and verified when it is loaded; a larger
one is pickled as the path of its file, which is mapped."""
weights_count_max = (1 << 31) - 1
"""Largest dataset that has weights: they are summed up in 62 bits, 31 of them for each weight."""
weights_samples_inline_max = 4 * MIB
"""Weights of more samples are in a mapped file, and pickled as the path of one."""
weights_state_samples_max = 8192
"""Weights of up to so many samples that are handed in between epochs are in a state themselves."""
lengths_samples_inline_max = 4 * MIB
"""Lengths of more samples, which the index knows, are put into a nameless file, and mapped."""
parsed_piece_bytes = 128 * MIB
"""Larger JSONL files, TFRecords and tars are parsed piece by piece, by several threads or tasks."""
tar_search_bytes = 8 * MIB
"""Bytes in which a piece of a tar looks for its first member: within a longer one it has none."""
task_bytes = 1 << 30
"""Files that one task of shared work parses, where they are as large; a larger file is one task."""
tasks_usual = 512
"""Tasks, about, that a plan of work has where there are many files."""
task_text_bytes = 64 * MIB
"""Texts that one task of shared work encodes; of few texts a sixteenth, or more."""
measured_tasks_max = 4096
"""Tasks, about, that measure lengths or statistics: each has several chunks then."""
tasks_waiting = 256
"""Submissions, of a task or of several short ones, that wait in an engine at a time."""
tasks_tried = 4
"""Submissions that wait while they take less than `task_s`, and grow."""
task_s = 0.2
"""Time after which several tasks in one end: what the engine itself costs is small by then."""
engine_start_s = 120.0
"""Longest wait for the first worker of an engine: clusters that grow on demand take a while."""
join_bytes_max = 1 << 30
"""Most bytes of the values that a join adds: they are in memory, in each worker process."""
join_samples_max = 1 << 26
"""Most samples, and rows, of a join: 8 bytes of memory each, and 100 to 200 more by name."""
lengths_chunk_bytes = 64 * MIB
"""Data of which the lengths are measured at a time, and kept when the measuring is killed."""
lengths_batch_bytes = 8 * MIB
"""Data that each process reads at a time while it measures lengths."""
stats_block_numbers = 1 << 16
"""Numbers that one thread sums at a time: in float64 they fit a core's cache."""
stats_batch_bytes_max = 256 * MIB
"""Data that each thread reads at a time, where compressed chunks are so large."""
stats_numbers_max = 1 << 17
"""Numbers that are saved of a chunk of data: moments or bins, of all rows of all fields."""
annotation_file_bytes_max = 4096 * MIB
"""Largest list of names of a split that is parsed: it is read whole, when the index is made."""
annotation_piece_bytes = 16 * MIB
"""Text of a large document of annotations that is read and decoded at a time."""
predicate_characters_max = 100_000
"""Longest condition of a selection; one with more values is a list of ids."""
packing_batch_max = (1 << 31) - 1
"""Tokens of a batch: its boundaries are int32."""
packing_windows_max = 1 << 26
"""Windows of an epoch: 16 bytes of memory each."""
packing_length_max = 1 << 24
"""Longest row of packed documents: the core's tree of free spaces has four levels of 64."""
packing_window_min = 1 << 12
packing_window_auto_max = 1 << 20
packing_window_max = 1 << 24
"""Documents of a window that is packed: at least and at most if nobody says so, and at most."""
packing_window_rows = 512
"""Rows that a window has, if it may be so large: the last one is half empty."""
packing_pieces_max = 1 << 26
"""Rows of long documents in one window: 32 bytes for each piece."""
packing_windows_kept = 4
"""Packed windows that an order keeps: steps of all ranks, and steps read ahead, are in few."""
packing_table_documents_min = 1 << 22
"""Documents from which on counted rows are kept in a file: fewer are counted in 0.4 s."""
packing_table_interval = 64
"""Windows after which the counts of other processes are taken over from that file."""
packing_tables_kept = 8
"""Row-count files kept per data set; an epoch has one."""
packing_thread_nice = 10
"""Niceness of the thread that counts rows behind training."""
packing_epochs_kept = 3
"""Epochs whose rows are counted that an order keeps."""
joining_block_documents = 256
"""Documents for which joined documents keep one sum: 31 MB for 10^9 documents, and 6 us a row."""
joining_chunk_documents = 1 << 20
"""Documents whose lengths are read at a time to make these sums."""
joining_tokens_max = 1 << 61
"""Tokens of joined documents: places of them are int64."""
mixture_slots = 4096
"""Slots of a mixture's period: weights are rounded to 1/4096 of all."""
shuffle_pairs = 1024
"""Pairs of epochs from which the quality of a shuffle is estimated."""
shuffle_runs = 8
"""Runs of neighbouring samples that the estimate looks at."""
shuffle_run_samples = 128
"""Samples of one such run, next to each other in storage. An estimate takes 0.4 s."""

# -- index -----------------------------------------------------------------------------------
sidecar_bytes_verified_max = 256 * MIB
"""A sidecar up to this size has its checksum verified on load; above, `inspect --verify` does."""

scan_threads = 16
"""Threads that list folders and stat files: on shared storage each answer is a round trip."""
header_bytes_max = 1 * MIB
"""Longest header of a container that is parsed; a longer one is treated as damage."""

film_frames_max = 1 << 22
"""Most frames of a film: 38 hours at 30 a second."""
film_header_bytes_max = 128 * MIB
"""Longest header of a film, of all tracks: a frame has some 8 to 20 bytes there."""
film_boxes_max = 1 << 18
"""Most boxes of a film: a fragment has some eight."""

sound_file_bytes_max = 1 << 30
"""Largest file of sound in packets, which are looked for in all of it: 18 hours at 128 kbit/s."""
sound_rate_max = 1 << 22
"""Most samples of sound in a second."""
sound_channels_max = 64
"""Most channels of sound."""

sandbox_silent_s = 120
"""Longest time that a library in another process may work on a file without reading any of it."""
sandbox_memory_fraction = 0.25
"""Part of the machine's memory that that process may allocate; beyond it, the file is damaged."""

# -- images -----------------------------------------------------------------------------------
image_pixels_max = 89_478_485
"""Largest image that is decoded, 256 MiB as RGB; Pillow warns of larger ones."""

# -- codecs ----------------------------------------------------------------------------------
decoded_chunks_bytes_max = 256 * MIB
"""Bytes of compressed chunks that a process keeps decoded, if half of its loaders' budgets is as
much; the least recently used are dropped first."""
uses_ahead_max = 1 << 16
"""Needs of chunks by later windows that a plan of decoded chunks knows; some 30 MB."""
piece_bytes = 512
"""Memory of a kept piece of a chunk besides its values."""
uses_a_step = 4096
"""Needs of chunks that such a plan looks up for each step; about as much work as some ms."""
decoded_chunk_bytes_max = 4096 * MIB
"""Most bytes that a compressed chunk may claim to decode to; more counts as damage."""
undeclared_chunk_bytes_max = 1024 * MIB
"""Most bytes that a chunk may decode to if nothing but itself says its size (LitData's)."""

idle_decoders_max = 32
"""Decoders of films that a process keeps for the next group of pictures."""

line_chunk_bytes = 256 << 10
"""Bytes of text from which on frames of compressed lines are no longer joined to one chunk."""
line_frame_bytes_max = 16 * MIB
"""Most bytes of text in one frame of compressed lines: all of it is unpacked to read one line."""

# -- plan ------------------------------------------------------------------------------------
window_samples_max = 1 << 15
"""Samples planned in one vectorised pass: large enough to amortise numpy, small enough (1 ms)
not to delay a step."""
window_steps_max = 64
"""Steps planned in one pass."""
model_width_max = 1 << 24
"""Largest width of a model by which costs of samples are computed."""
balanced_rows_max = (1 << 24) - 1
"""Largest global batch that is dealt by cost: the core has 24 bits for a row."""
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
"""Reads in flight from storage that is not local, unless the budget gives a number. A read takes
about 0.5 ms there, most of it waiting, so fewer leave the storage idle (docs/decisions/0009)."""
open_files_max = 4096
"""Files that the engines of a process keep open together, the least recently used being closed; a
quarter as many are open for single reads besides. A dataset of more files opens each file for each
read."""
replay_threads_max = 1024
"""Threads of a recorded job that are replayed at the same time."""
block_bytes_max = 1 << 30
"""Longest block of a disk tier: what one call of the system moves."""
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
"""Unwanted bytes between two wanted extents of an object that are cheaper to read than a second
request. A request waits 20 ms, but 64 wait at once, so it costs 0.3 ms. In that time the link
brings 40 KB at 1 Gbit/s and 400 KB at 10 Gbit/s, shared by all requests (docs/objects.md)."""
object_inflight_bytes = 128 * MIB
"""Bytes of answers in flight beyond which a request waits, whatever their number."""
object_connect_s = 5
"""Longest time that a connection may take to be made."""
object_stall_s = 10
"""Longest time that an answer may make no progress."""
object_deadline_s = 60
"""Time for which a read is retried before it fails with ETIMEDOUT."""
object_listing_deadline_s = 30
"""Time for which a request is retried while data is opened; shorter, so that a wrong name or
endpoint is seen soon."""
hub_redirects_max = 5
"""Addresses that the hub may lead through to the bytes of a file."""
hub_addresses_max = 65_536
"""Signed addresses of files that are kept: 64 MiB of them at most."""
hub_pages_max = 10_000
"""Pages of a listing, of some thousand files each."""
hub_listing_bytes_max = 1024 * MIB
"""Largest saved listing of a commit that is read from the hub's local cache."""
object_pause_s = 0.05
"""Pause before the first retry; each pause is a random part of twice the one before."""
object_pause_s_max = 5.0
"""Longest pause between retries."""
object_part_bytes = 8 * MIB
"""Size of the parts in which an object is written; each is in memory while it is sent."""
object_parts = 8
"""Parts of an object in flight at once."""
object_parts_max = 9_000
"""Most parts of an object. Services take up to 10,000; a larger object gets larger parts."""

# -- peers -----------------------------------------------------------------------------------
peer_keys_max = 1 << 16
"""Keys of one fetch: a message of 1 MiB."""
peer_fetch_bytes = 8 * MIB
"""Bytes that one fetch asks for, unless one sample is larger: a step may ask for more than one."""
peer_piece_bytes = 1 * MIB
"""Size of the messages that answers are cut into, so that neither side holds more than it needs."""
peer_join_bytes = 64 * 1024
"""Parts of an answer below this are joined by copying: a message of its own costs more."""
peer_inflight_bytes = 32 * MIB
"""Bytes requested from one node beyond which fetches wait; a larger fetch goes alone. 32 MiB are
25 ms of a link of 10 Gbit/s."""
peer_inflight_fetches = 32
"""Fetches requested from one node beyond which further ones wait."""
peer_messages_max = 64
"""Messages to or from one node in a queue: the pieces of so many bytes and fetches."""
peer_unanswered_max = 4 * peer_inflight_fetches
"""Requests of one node that wait for their answers; further ones are refused. There may be more
than are in flight, because the other node may have given up on some."""
peer_answers_bytes_max = 64 * MIB
"""Bytes of answers that a rank has gathered for others and that are not sent, if a quarter of its
budget is as much; one answer may always be there. What two nodes may have in flight."""
peer_length_max = 1 << 46
"""Most bytes that another node may expect of one key; more is treated as damage."""
peer_io_threads = 2
"""Threads that encrypt, decrypt and send: each handles about 500 MB/s of a connection."""
peer_sockets_max = 1 << 14
"""Most sockets of a peer: three for each node that it asks."""
source_check_wait_s = 0.5
"""Longest time that an epoch waits until the files of kept bytes have been looked at again."""
peer_timeout_s = 10.0
"""Longest time that a fetch may take from submit on."""
peer_connect_s = 3.0
"""Longest time that a connection may take to be made."""
peer_handshake_s = 10.0
"""Longest time until both sides have authenticated: the other node answers in its loop."""
peer_heartbeat_s = 1.0
"""Interval at which a silent connection is probed."""
peer_silent_s = 3.0
"""Longest time that a connection may stay silent before it is closed."""
coordination_wait_s = 300.0
"""Longest time that a process of JAX waits for what the others say of themselves."""
peer_pause_s = 1.0
"""Time for which a lost node is not asked again: fetches from it fail at once meanwhile."""
peer_retry_s = 0.005
"""Interval at which sending an answer is retried to a node whose queue was full."""
peer_round_messages = 256
"""Messages taken from one socket before the other sockets have their turn."""
peer_nap_s = 0.002
"""Longest sleep of a peer over MPI between polls, and so the longest delay of a message. It sleeps
an eighth of the time that nothing has happened. With 2 ms it takes 2 % of a processor when idle."""
peer_leave_s = 1.0
"""Time for which a peer over MPI that is closed waits for the others to notice."""

# -- cache -----------------------------------------------------------------------------------
cache_bytes_max = (1 << 48) - 1
"""Most bytes of a cache on one host, in memory and on disk each; the core's slabs count so far."""
cache_block_bytes_default = 64 * 1024
"""Size of a cache block of small samples if storage cannot be measured: with 64 reads of 0.5 ms in
flight it gives 8 GB/s."""
cache_block_bytes_min = 4 * 1024
"""Least size that is chosen if the data allows it: smaller blocks would read the same page of
storage several times, and each takes 8 bytes of a table and up to 63 bytes of padding."""
cache_block_bytes_max = 1 * MIB
"""Largest size that is chosen: with a batch of 100 samples the first step of a run reads
100 MiB."""
cache_blocks_min = 1024
"""Least number of cache blocks of a data set, unless it has fewer samples: coarser blocks are dealt
unevenly."""
cache_block_probe_fraction = 1 / 256
"""Part of a data set that is read to choose the size: every byte should leave storage once."""
cache_block_probe_bytes_min = 1 * MIB
"""Fewest bytes with which storage is measured: fewer would tell nothing if reads are fast."""
cache_blocks_looked_at = 1 << 14
"""Cache blocks whose sizes are examined to estimate how many fit."""
dealt_samples_max = 1 << 22
"""Samples up to which all sizes are looked at, in 0.3 s, to deal hosts equal bytes. Above, each of
1,024 hosts has over 4,096 samples, whose bytes vary by 1 % if sizes vary by 2/3 of their mean."""
slab_spare_bytes = 1 * MIB
"""Spare bytes of a slab that holds all of a data set."""
replica_epochs = 32
"""Epochs in which the next use of a sample is searched: with N ranks it comes after N epochs on
average."""
replica_pages = 8
"""Pages in a sample of mean size. Replicas take whole pages; half a page of each is lost: 6 %."""
replica_pages_max = 64
"""Most pages of one replica; a larger sample is not copied."""
busy_cache_block_s = 30.0
"""Time to wait for a cache block that another rank of the host reads, before reading it again."""

# -- loader ----------------------------------------------------------------------------------
alone_bytes = 8 * MIB
"""Bytes of a first step beside which no second is read: reads and memory of both would compete."""

readahead_bytes_default = 256 * MIB
"""Bytes of batches requested or ready but not yet handed over, unless the budget gives a number."""
readahead_bytes_max = 1 << 50
"""Most such bytes that a budget may give: more than any machine has."""
readahead_steps_max = 64
"""Most steps requested or ready but not yet handed over, however small they are."""
readahead_cached_bytes_max = 32 * MIB
"""Bytes of such batches if the data is in the page cache, from which it arrives at once: batches
further ahead would only push each other out of the processor's caches. Four steps are allowed
however large they are."""
readahead_cached_steps_max = 16
"""Most such steps if the data is in the page cache."""
decode_threads_max = 4096
"""Most threads that decode for one loader."""
lent_slots_max = 4
"""Batches of one worker process that the user holds in shared memory; further ones are copied, so
that keeping batches does not use up a process's maps."""
metrics_clients_max = 16
"""Clients of one metrics endpoint; one more ends the connection that is open longest."""
metrics_client_s = 10.0
"""Time after which a client of a metrics endpoint is disconnected: an answer takes milliseconds."""
metrics_end_s = 5.0
"""Longest wait for the thread of a client that was disconnected."""

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
"""Bytes of the largest request to storage if requests of several purposes wait. A request cannot be
interrupted, so a demand waits for so many bytes of another purpose (0.3 ms at 3 GB/s)."""
queued_bytes_default = 16 * MIB
"""Bytes in flight to one target."""
pieces_max = 1 << 16
"""Pieces of requests that wait or are in flight: 64 GiB of the default unit."""
patience_ns_max = 60_000_000_000
"""Longest time for which a request may be overtaken by more urgent ones that come later."""

mirror_pause_s = 5.0
"""Time for which a mirror is not asked after it failed a read that another mirror served, as long
as others have the data."""

# -- tiers ---------------------------------------------------------------------------------------
disk_buffers_bytes_max = 64 * MIB
"""Bytes of cache blocks that are on their way to or from the disk tier of a rank, or of buffers
kept for them, if a quarter of its budget is as much; one step may take more."""

# -- checkpoints ---------------------------------------------------------------------------------
checkpoint_piece_bytes = 64 * MIB
"""Largest piece into which tensors are cut for the ranks that write them."""
checkpoint_piece_bytes_min = 8 * MIB
"""Smallest such piece: smaller pieces would cost requests."""
checkpoint_pieces = 8
"""Approximate number of pieces of each rank, if their size is within these bounds: the last piece
is then an eighth of the rank's share."""
checkpoint_first_rank_bytes = 256 * 1024
"""Smaller tensors of a checkpoint are rank 0's, on any number of ranks: buffers such as
batch-norm statistics may differ between ranks. Larger ones are compared."""
checkpoint_sample_lines = 64
"""Fewest lines of 64 bytes of a tensor by which ranks compare it."""
checkpoint_sample_bytes = 64 * 1024
"""Bytes of its own part of a state that a rank copies for each line by which ranks compare."""
checkpoint_requests = 16
"""Pieces that are read from an object store at once."""
checkpoint_claims = 8
"""Claims of jobs that stay in an object store."""

# -- measuring -----------------------------------------------------------------------------------
residency_files_max = 1024
"""Files that are checked for residence in the page cache."""
residency_s = 0.25
"""Longest time that this check may take."""
ceiling_s = 0.25
"""Duration of one measurement of the machine: a decode function, opening, writing."""
cold_s = 0.15
"""Longest time to drop data that is to be read cold; data that is not dropped by then is not
read."""
ceiling_samples_bytes_max = 64 * MIB
"""Bytes of samples that are read, to be decoded again and again."""
ceiling_samples_max = 64
"""Samples that are read, to be decoded again and again."""
ceiling_files_max = 512
"""Files that are opened again and again."""
ceiling_written_bytes = 8 * MIB
"""Bytes that are written and synced at a time."""

# -- the benchmark --------------------------------------------------------------------------------
generated_bytes_max = 10_000_000_000
"""Bytes of samples that the command line generates without `--yes`."""

# -- convert -------------------------------------------------------------------------------------
shard_bytes_default = 256 * MIB
"""Size of a written shard: large enough to be read at full speed, small enough to be moved."""
shards_max = 1_000_000
"""Shards of one conversion: their names, which have six digits, sort as their numbers do."""
commit_bytes_max = 64 * MIB
"""Bytes written to an LMDB environment between two commits; an interrupted conversion loses
them."""
commit_samples_max = 10_000
"""Samples written to an LMDB environment between two commits."""
encoded_bytes = MIB // 4
"""Bytes of text that a process encodes at a time, about 0.1 s of `tokenizers`; a longer document is
encoded by itself."""
encoded_documents_max = 4096
"""Documents that a process encodes at a time."""
encoded_ahead_bytes_max = 64 * MIB
"""Bytes of text that were read and whose tokens are not written: while one process encodes a long
document, the others go on with what follows."""
encoded_commit_s = 5.0
"""Seconds between two commits of written tokens; an interrupted run loses them."""
encoded_checked_documents = 1000
"""Documents that are encoded again to verify what was written."""

assert object_inflight_bytes >= run_bytes_max, "the longest run must be allowed"
assert peer_messages_max >= peer_inflight_bytes // peer_piece_bytes + peer_inflight_fetches, (
    "what a node may ask for must fit into the queues"
)
assert 2 * run_extents_max <= 1024, "a merged read needs one iovec per extent and one per gap"
assert readahead_steps_max <= window_steps_max, "a window must cover the read-ahead"

# -- the simulator ---------------------------------------------------------------------------------

network_paths_max = 1 << 25
"""Pairs of switches with traffic, times switches, of a simulated network: 3 GiB, about 10 s."""
network_paths_divided_max = 1 << 21
"""The bound if adaptive routing divides the traffic of each pair by itself: about 20 s."""
network_flows_max = 1 << 22
"""Pairs of nodes of a simulated network, all of which exchange: 2,048 nodes."""
simulated_ranks_max = 64
"""Ranks that the model of events may have: a second or two for a step in which each asks others."""

# -- allocation ------------------------------------------------------------------------------------

allocation_number_min = 1e-12
"""Least value of a profile, share or resource, in its unit."""
allocation_number_max = 1e18
"""Largest value of a profile, share or resource, in its unit. A value outside these bounds is a
mistake, and products and quotients of several would leave the range of floats."""

# -- the broker ------------------------------------------------------------------------------------

broker_line_bytes = 4096
"""Longest line that a broker or a job accepts; reports take about 400 bytes."""
broker_state_bytes = 1 * MIB
"""Longest line that a watcher of a broker accepts: 300 bytes a member."""
broker_waiting_bytes = 2 * MIB
"""Bytes that are queued for a client that does not read, before its connection is closed."""
broker_members_max = 512
"""Connections of one broker; further ones are refused."""
broker_unproven_max = 64
"""Connections over a network that have not yet proved that they have the key."""
broker_proof_s = 5.0
"""Time in which a connection has to prove that it has the key."""
broker_gather_s = 5.0
"""Time after the restart of a broker of several hosts in which a host takes no more than its floor:
by then the others have found the broker, too."""
broker_transfers_max = 64
"""Transfers of one connection at a time."""
broker_tick_s = 0.25
"""Longest delay until a member's silence is noticed."""
broker_nap_ns = 100_000_000
"""Longest delay until a message is noticed: eight jobs then wake the broker half as often."""
broker_answer_s = 10.0
"""Time without a message after which a watcher considers a broker stopped; one comes every
second."""
broker_retry_s = 2.0
"""Interval at which a loader without a broker looks for one."""
grant_wait_s = 1.0
"""Time for which a transfer waits for its first grant: a running broker answers at once."""
lease_readahead_s = 2.0
"""Largest read-ahead of a loader with a lease, in seconds of its leased rate. More would only hold
back other loaders that wait for the rate."""
lease_readahead_bytes_min = 1 * MIB
"""Least read-ahead of a loader with a lease."""
