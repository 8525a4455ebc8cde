// slowfs: a read-only view of a folder through FUSE that answers as slow, shared storage would.
//
//   slowfs SOURCE MOUNTPOINT PAGE_FD NUMBER OWNER_PID
//
// One process is one mount: the client of one emulated node, with a page cache of its own. All mounts
// of one emulated storage map the same page of memory, which holds what they share: parameters (they
// may change while mounted), the storage's clocks, and counters of what it served.
//
// How time passes. A request is read at once and answered when it is due. The storage has server
// slots, each of which is free from some moment on, and one link, free from `link_free_ns` on:
//   begin = max(now, the earliest free slot);  sent = max(begin, link free) + bytes / bandwidth;
//   due = sent + latency.
// A clock is advanced by compare-and-swap, so no lock is left behind by a process that is killed, and
// idle time earns no credit. One thread receives, one answers: however many requests are outstanding,
// nobody sleeps for each of them. `lead_ns` is subtracted from every wait, because a sleeper wakes late.
//
// The mount ends with its owner: the process is told through a pidfd, also after kill -9.
#define FUSE_USE_VERSION 35
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { slots_max = 256, mounts_max = 64, second = 1000000000 };
enum fault { no_fault, fault_error, fault_short, fault_hang, fault_truncate };
typedef _Atomic int64_t value;

struct shared {  // twin: _shared and _mount in __init__.py
  value bytes_per_s, meta_ns, read_ns, lead_ns, slots, link_free_ns, reserved[2];
  value slot_free_ns[slots_max];
  struct mount {
    value reads, bytes, metas, outstanding, outstanding_max;     // counted here
    value direct, keep, fault, fault_from, fault_to, fault_value;  // asked for by the owner
    value reserved[5];
  } mounts[mounts_max];
};

struct answer {
  int64_t due_ns;
  fuse_req_t request;
  enum { an_error, an_entry, an_attribute, an_open_file, a_buffer } kind;
  int error, is_read;
  struct fuse_entry_param entry;
  struct fuse_file_info file;
  size_t size;
  char *data;
};

struct node {  // one file or folder that was looked up; kept until the mount ends
  struct node *next;
  dev_t device;
  ino_t number;
  char *path;
};

static struct shared *shared;
static struct mount *mount_;
static struct fuse_session *session;
static const char *mountpoint;
static struct node root;
static struct node *nodes[4096];

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t earlier;
static struct answer **heap;  // by due_ns, the earliest first
static size_t heap_size, heap_room;

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * second + now.tv_nsec;
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

// Moves a clock on by `busy_ns` from when it is free, at the earliest from `from_ns`; returns the end.
static int64_t occupy(value *clock, int64_t from_ns, int64_t busy_ns) {
  int64_t free_ns = *clock, end_ns;
  do end_ns = later(free_ns, from_ns) + busy_ns;
  while (!atomic_compare_exchange_weak(clock, &free_ns, end_ns));
  return end_ns;
}

static int64_t due_ns(int64_t latency_ns, int64_t bytes) {
  const int64_t rate = shared->bytes_per_s, now = now_ns();
  const int64_t transfer_ns = rate > 0 ? (int64_t)((double)bytes * second / (double)rate) : 0;
  int64_t slots = shared->slots, begin = now;
  value *slot = NULL;
  if (slots > slots_max) slots = slots_max;
  for (int64_t i = 0; i < slots; ++i)
    if (slot == NULL || shared->slot_free_ns[i] < *slot) slot = &shared->slot_free_ns[i];
  if (slot != NULL) begin = occupy(slot, now, latency_ns + transfer_ns) - latency_ns - transfer_ns;
  const int64_t sent = rate > 0 ? occupy(&shared->link_free_ns, begin, transfer_ns) : begin;
  const int64_t due = sent + latency_ns;
  return due > now ? later(now, due - shared->lead_ns) : now;
}

// -- answering ------------------------------------------------------------------------------------

static void send_answer(struct answer *a) {
  if (a->error) fuse_reply_err(a->request, a->error);
  else if (a->kind == an_error) fuse_reply_err(a->request, 0);
  else if (a->kind == an_entry) fuse_reply_entry(a->request, &a->entry);
  else if (a->kind == an_attribute) fuse_reply_attr(a->request, &a->entry.attr, 1.0);
  else if (a->kind == an_open_file) fuse_reply_open(a->request, &a->file);
  else fuse_reply_buf(a->request, a->data, a->size);
  if (a->is_read) --mount_->outstanding;
  free(a->data);
  free(a);
}

static void schedule(struct answer *a) {
  pthread_mutex_lock(&mutex);
  if (heap_size == heap_room) {
    heap_room = heap_room ? 2 * heap_room : 1024;
    heap = realloc(heap, heap_room * sizeof *heap);
    if (heap == NULL) abort();
  }
  size_t at = heap_size++;
  for (; at > 0 && heap[(at - 1) / 2]->due_ns > a->due_ns; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
  heap[at] = a;
  if (at == 0) pthread_cond_signal(&earlier);
  pthread_mutex_unlock(&mutex);
}

static struct answer *take_earliest(void) {
  struct answer *first = heap[0], *last = heap[--heap_size];
  size_t at = 0;
  for (size_t child; (child = 2 * at + 1) < heap_size; at = child) {
    if (child + 1 < heap_size && heap[child + 1]->due_ns < heap[child]->due_ns) ++child;
    if (heap[child]->due_ns >= last->due_ns) break;
    heap[at] = heap[child];
  }
  heap[at] = last;
  return first;
}

static void *answer_when_due(void *unused) {
  prctl(PR_SET_TIMERSLACK, 1);
  pthread_mutex_lock(&mutex);
  for (;;) {
    if (heap_size == 0) {
      pthread_cond_wait(&earlier, &mutex);
    } else if (heap[0]->due_ns > now_ns()) {
      const struct timespec due = {heap[0]->due_ns / second, heap[0]->due_ns % second};
      pthread_cond_timedwait(&earlier, &mutex, &due);
    } else {
      struct answer *first = take_earliest();
      pthread_mutex_unlock(&mutex);
      send_answer(first);
      pthread_mutex_lock(&mutex);
    }
  }
  return unused;
}

// -- receiving ------------------------------------------------------------------------------------

static struct answer *begin_answer(fuse_req_t request, int kind) {
  struct answer *a = calloc(1, sizeof *a);
  if (a == NULL) abort();
  a->request = request;
  a->kind = kind;
  return a;
}

static void schedule_meta(struct answer *a) {
  ++mount_->metas;
  a->due_ns = due_ns(shared->meta_ns, 0);
  schedule(a);
}

static struct node *node_of(fuse_ino_t number) {
  return number == FUSE_ROOT_ID ? &root : (struct node *)(uintptr_t)number;
}

static void on_init(void *unused, struct fuse_conn_info *connection) {
  (void)unused;
  connection->max_background = 1024;  // the slots decide how much the storage does at once
  connection->congestion_threshold = 1024;
  connection->time_gran = 1;
  if (write(STDOUT_FILENO, "\n", 1) == 1) close(STDOUT_FILENO);  // mounted, says the owner's pipe
}

static void on_lookup(fuse_req_t request, fuse_ino_t parent, const char *name) {
  struct answer *a = begin_answer(request, an_entry);
  char *path = NULL;
  if (asprintf(&path, "%s/%s", node_of(parent)->path, name) < 0) abort();
  struct stat *found = &a->entry.attr;
  if (lstat(path, found) != 0) {
    a->error = errno;
    free(path);
  } else {
    struct node **chain = &nodes[(found->st_ino ^ found->st_dev) % 4096], *node = *chain;
    while (node && (node->number != found->st_ino || node->device != found->st_dev)) node = node->next;
    if (node == NULL) {
      if ((node = calloc(1, sizeof *node)) == NULL) abort();
      *node = (struct node){*chain, found->st_dev, found->st_ino, path};
      *chain = node;
    } else {
      free(path);
    }
    a->entry.ino = (uintptr_t)node;
    a->entry.attr_timeout = a->entry.entry_timeout = 1.0;
  }
  schedule_meta(a);
}

static void on_forget(fuse_req_t request, fuse_ino_t number, uint64_t times) {
  (void)number, (void)times;
  fuse_reply_none(request);
}

static void on_getattr(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file) {
  (void)file;
  struct answer *a = begin_answer(request, an_attribute);
  if (lstat(node_of(number)->path, &a->entry.attr) != 0) a->error = errno;
  schedule_meta(a);
}

static void on_open(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file) {
  struct answer *a = begin_answer(request, an_open_file);
  a->file = *file;
  const int opened = open(node_of(number)->path, O_RDONLY | O_CLOEXEC);
  if ((file->flags & O_ACCMODE) != O_RDONLY) a->error = EROFS;
  else if (opened < 0) a->error = errno;
  if (a->error && opened >= 0) close(opened);
  a->file.fh = (uint64_t)opened;
  a->file.direct_io = mount_->direct != 0;
  a->file.keep_cache = mount_->keep != 0;
  schedule_meta(a);
}

static void on_release(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file) {
  (void)number;
  close((int)file->fh);
  fuse_reply_err(request, 0);
}

static void inflict(struct answer *a, int64_t offset) {
  const int64_t from = mount_->fault_from, value = mount_->fault_value;
  if (a->error || offset >= mount_->fault_to || offset + (int64_t)a->size <= from) return;
  switch ((enum fault)mount_->fault) {
    case fault_error: a->error = (int)value; break;
    case fault_short: a->size = (int64_t)a->size > value ? (size_t)value : a->size; break;
    case fault_hang: a->due_ns += value, a->error = ETIMEDOUT; break;
    case fault_truncate: a->size = offset >= from ? 0 : (size_t)(from - offset); break;
    case no_fault: break;
  }
}

static void on_read(fuse_req_t request, fuse_ino_t number, size_t size, off_t offset,
                    struct fuse_file_info *file) {
  (void)number;
  struct answer *a = begin_answer(request, a_buffer);
  a->data = malloc(size);
  if (a->data == NULL) abort();
  const ssize_t got = pread((int)file->fh, a->data, size, offset);
  if (got < 0) a->error = errno;
  a->size = got < 0 ? 0 : (size_t)got;
  a->is_read = 1;
  ++mount_->reads;
  mount_->bytes += (int64_t)a->size;
  const int64_t outstanding = ++mount_->outstanding;  // only this thread raises it
  if (outstanding > mount_->outstanding_max) mount_->outstanding_max = outstanding;
  a->due_ns = due_ns(shared->read_ns, (int64_t)a->size);
  inflict(a, offset);
  schedule(a);
}

static void on_opendir(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file) {
  struct answer *a = begin_answer(request, an_open_file);
  DIR *folder = opendir(node_of(number)->path);
  if (folder == NULL) a->error = errno;
  a->file = *file;
  a->file.fh = (uintptr_t)folder;
  schedule_meta(a);
}

static void on_readdir(fuse_req_t request, fuse_ino_t number, size_t size, off_t offset,
                       struct fuse_file_info *file) {
  (void)number;
  struct answer *a = begin_answer(request, a_buffer);
  DIR *folder = (DIR *)(uintptr_t)file->fh;
  if ((a->data = malloc(size)) == NULL) abort();
  seekdir(folder, offset);
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    const struct stat about = {.st_ino = entry->d_ino, .st_mode = (mode_t)entry->d_type << 12};
    const size_t need = fuse_add_direntry(request, a->data + a->size, size - a->size, entry->d_name,
                                          &about, telldir(folder));
    if (need > size - a->size) break;
    a->size += need;
  }
  schedule_meta(a);
}

static void on_releasedir(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file) {
  (void)number;
  closedir((DIR *)(uintptr_t)file->fh);
  fuse_reply_err(request, 0);
}

static const struct fuse_lowlevel_ops operations = {
    .init = on_init, .lookup = on_lookup, .forget = on_forget, .getattr = on_getattr,
    .open = on_open, .read = on_read, .release = on_release,
    .opendir = on_opendir, .readdir = on_readdir, .releasedir = on_releasedir,
};

// -- life -----------------------------------------------------------------------------------------

static void end_mount(void) {
  umount2(mountpoint, MNT_DETACH);  // also where files are open; they fail from now on
  rmdir(mountpoint);
}

static void *end_with_owner(void *owner) {
  struct pollfd watched = {(int)(intptr_t)owner, POLLIN, 0};
  while (poll(&watched, 1, -1) < 0 && errno == EINTR) {
  }
  end_mount();
  _exit(0);
}

int main(int argc, char **argv) {
  if (argc != 6) return fputs("usage: slowfs SOURCE MOUNTPOINT PAGE_FD NUMBER OWNER_PID\n", stderr), 2;
  mountpoint = argv[2];
  root.path = argv[1];
  const int page = atoi(argv[3]), number = atoi(argv[4]);
  const long owner = syscall(SYS_pidfd_open, atoi(argv[5]), 0);
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
  if (shared == MAP_FAILED || owner < 0 || number < 0 || number >= mounts_max) {
    perror("slowfs: page, owner or number");
    return 1;
  }
  mount_ = &shared->mounts[number];

  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&earlier, &monotonic);

  char *words[] = {"slowfs", "-o", "ro,fsname=slowfs,default_permissions,allow_other"};
  struct fuse_args arguments = FUSE_ARGS_INIT(3, words);
  session = fuse_session_new(&arguments, &operations, sizeof operations, NULL);
  if (session == NULL || fuse_session_mount(session, mountpoint) != 0) return 1;
  pthread_t answering, watching;
  if (pthread_create(&answering, NULL, answer_when_due, NULL) != 0 ||
      pthread_create(&watching, NULL, end_with_owner, (void *)(intptr_t)owner) != 0) {
    end_mount();
    return 1;
  }
  const int failed = fuse_session_loop(session);
  end_mount();
  _exit(failed < 0);  // answers that are still due die with the connection
}
