// faulty: a folder through FUSE, to read and to write, that fails and hangs when its owner says so.
//
//   faulty SOURCE MOUNTPOINT PAGE_FD OWNER_PID
//
// Every call goes to the folder as it came; nothing is cached, so that each call of the user is one
// here. A page of memory that the owner shares holds, for each kind of call, the fault asked for and
// counters of what was seen. Calls that hang take a thread each, and end when the fault is taken back
// or when the caller is killed, as on a network file system that is mounted "hard".
//
// The mount ends with its owner: the process is told through a pidfd, also after kill -9.
#define FUSE_USE_VERSION 35
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { nap_us = 1000, part_bytes = 72 };
typedef _Atomic int64_t value;

// Twins of OPERATIONS and FAULTS in faulty.py.
enum operation {
  op_getattr, op_mkdir, op_rmdir, op_unlink, op_rename, op_create, op_open, op_read, op_write, op_fsync,
  op_fsyncdir, op_fallocate, op_truncate, op_flock, op_flush, op_readdir, op_statfs, operations
};
enum fault { no_fault, fault_error, fault_late, fault_short, fault_hang };

static struct page {
  struct {
    value fault, number;          // asked for; number: an errno, or bytes
    value pass, times;            // calls that are let through first, then how many are hit; < 0: all
    value calls, hits, hanging;   // seen: calls whose path, with a $ behind it, has `part` in it
    char part[part_bytes];
  } of[operations];
} *page;

static int source;
static const char *mountpoint;

static const char *below(const char *path) { return path[1] ? path + 1 : "."; }

static int takes_part(value *left) {  // counts down to zero; whether it was above
  int64_t found = *left;
  do if (found == 0) return 0;
  while (found > 0 && !atomic_compare_exchange_weak(left, &found, found - 1));
  return 1;
}

// What befalls this call: `late` is the errno that it ends with although it is done. Returns an errno
// that it ends with at once, negative, or 0.
static int befalls(enum operation op, const char *path, size_t *size, int *late) {
  *late = 0;
  char marked[PATH_MAX + 1];
  snprintf(marked, sizeof marked, "%s$", path);
  if (strstr(marked, page->of[op].part) == NULL) return 0;
  ++page->of[op].calls;
  const enum fault fault = (enum fault)page->of[op].fault;
  if (fault == no_fault || takes_part(&page->of[op].pass) || !takes_part(&page->of[op].times)) return 0;
  const int64_t number = page->of[op].number;
  ++page->of[op].hits;
  switch (fault) {
    case fault_error: return -(int)number;
    case fault_late: *late = -(int)number; break;
    case fault_short: if (size != NULL && (int64_t)*size > number) *size = (size_t)number; break;
    case fault_hang:
      ++page->of[op].hanging;
      while (page->of[op].fault == fault_hang && !fuse_interrupted()) usleep(nap_us);
      --page->of[op].hanging;
      return fuse_interrupted() ? -EINTR : 0;
    case no_fault: break;
  }
  return 0;
}

#define BEFALLS(op, path, size)                               \
  int late;                                                   \
  const int failed = befalls(op, path, size, &late);          \
  if (failed) return failed

static int ended(long result, int late) {  // of a call that is 0 or above where it went well
  return result < 0 ? -errno : late ? late : (int)result;
}

static void *on_init(struct fuse_conn_info *connection, struct fuse_config *config) {
  (void)connection;
  config->use_ino = 1;
  config->hard_remove = 1;
  config->entry_timeout = config->attr_timeout = config->negative_timeout = 0;
  config->intr = 0;
  if (write(STDOUT_FILENO, "\n", 1) == 1) close(STDOUT_FILENO);  // mounted, says the owner's pipe
  return NULL;
}

static int on_getattr(const char *path, struct stat *found, struct fuse_file_info *file) {
  BEFALLS(op_getattr, path, NULL);
  if (file != NULL) return ended(fstat((int)file->fh, found), late);
  return ended(fstatat(source, below(path), found, AT_SYMLINK_NOFOLLOW), late);
}

static int on_mkdir(const char *path, mode_t mode) {
  BEFALLS(op_mkdir, path, NULL);
  return ended(mkdirat(source, below(path), mode), late);
}

static int on_rmdir(const char *path) {
  BEFALLS(op_rmdir, path, NULL);
  return ended(unlinkat(source, below(path), AT_REMOVEDIR), late);
}

static int on_unlink(const char *path) {
  BEFALLS(op_unlink, path, NULL);
  return ended(unlinkat(source, below(path), 0), late);
}

static int on_rename(const char *from, const char *to, unsigned flags) {
  BEFALLS(op_rename, to, NULL);
  return ended(renameat2(source, below(from), source, below(to), flags), late);
}

static int opened(const char *path, struct fuse_file_info *file, int flags, mode_t mode) {
  // Alignment is no matter of this file system, and appending is the kernel's.
  const int got = openat(source, below(path), (flags & ~(O_DIRECT | O_APPEND)) | O_CLOEXEC, mode);
  file->fh = (uint64_t)got;
  file->direct_io = 1;
  return got < 0 ? -errno : 0;
}

static int on_create(const char *path, mode_t mode, struct fuse_file_info *file) {
  BEFALLS(op_create, path, NULL);
  const int wrong = opened(path, file, file->flags | O_CREAT, mode);
  if (wrong || !late) return wrong;
  close((int)file->fh);
  return late;
}

static int on_open(const char *path, struct fuse_file_info *file) {
  BEFALLS(op_open, path, NULL);
  const int wrong = opened(path, file, file->flags, 0);
  if (wrong || !late) return wrong;
  close((int)file->fh);
  return late;
}

static int on_read(const char *path, char *data, size_t size, off_t at, struct fuse_file_info *file) {
  BEFALLS(op_read, path, &size);
  return ended(pread((int)file->fh, data, size, at), late);
}

static int on_write(const char *path, const char *data, size_t size, off_t at,
                    struct fuse_file_info *file) {
  BEFALLS(op_write, path, &size);
  return ended(pwrite((int)file->fh, data, size, at), late);
}

static int on_fsync(const char *path, int data_only, struct fuse_file_info *file) {
  BEFALLS(op_fsync, path, NULL);
  return ended(data_only ? fdatasync((int)file->fh) : fsync((int)file->fh), late);
}

static int on_flush(const char *path, struct fuse_file_info *file) {
  (void)file;
  BEFALLS(op_flush, path, NULL);
  return late;
}

static int on_release(const char *path, struct fuse_file_info *file) {
  (void)path;
  close((int)file->fh);
  return 0;
}

static int on_fallocate(const char *path, int mode, off_t at, off_t size, struct fuse_file_info *file) {
  BEFALLS(op_fallocate, path, NULL);
  return ended(fallocate((int)file->fh, mode, at, size), late);
}

static int on_truncate(const char *path, off_t size, struct fuse_file_info *file) {
  BEFALLS(op_truncate, path, NULL);
  if (file != NULL) return ended(ftruncate((int)file->fh, size), late);
  const int opened_file = openat(source, below(path), O_WRONLY | O_CLOEXEC);
  if (opened_file < 0) return -errno;
  const int result = ended(ftruncate(opened_file, size), late);
  close(opened_file);
  return result;
}

static int on_flock(const char *path, struct fuse_file_info *file, int what) {
  BEFALLS(op_flock, path, NULL);
  return ended(flock((int)file->fh, what), late);
}

static int on_opendir(const char *path, struct fuse_file_info *file) {
  const int got = openat(source, below(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  file->fh = (uint64_t)got;
  return got < 0 ? -errno : 0;
}

static int on_readdir(const char *path, void *into, fuse_fill_dir_t fill, off_t at,
                      struct fuse_file_info *file, enum fuse_readdir_flags flags) {
  (void)at, (void)flags;
  BEFALLS(op_readdir, path, NULL);
  const int copy = openat((int)file->fh, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *folder = copy < 0 ? NULL : fdopendir(copy);
  if (folder == NULL) return -errno;
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) fill(into, entry->d_name, NULL, 0, 0);
  closedir(folder);
  return late;
}

static int on_fsyncdir(const char *path, int data_only, struct fuse_file_info *file) {
  (void)data_only;
  BEFALLS(op_fsyncdir, path, NULL);
  return ended(fsync((int)file->fh), late);
}

static int on_statfs(const char *path, struct statvfs *found) {
  BEFALLS(op_statfs, path, NULL);
  return ended(fstatvfs(source, found), late);
}

static int on_chmod(const char *path, mode_t mode, struct fuse_file_info *file) {
  (void)file;
  return ended(fchmodat(source, below(path), mode, 0), 0);
}

static int on_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *file) {
  (void)file;
  return ended(utimensat(source, below(path), times, AT_SYMLINK_NOFOLLOW), 0);
}

static const struct fuse_operations calls = {
    .init = on_init, .getattr = on_getattr, .mkdir = on_mkdir, .rmdir = on_rmdir, .unlink = on_unlink,
    .rename = on_rename, .create = on_create, .open = on_open, .read = on_read, .write = on_write,
    .fsync = on_fsync, .flush = on_flush, .release = on_release, .fallocate = on_fallocate,
    .truncate = on_truncate, .flock = on_flock, .opendir = on_opendir, .readdir = on_readdir,
    .releasedir = on_release, .fsyncdir = on_fsyncdir, .statfs = on_statfs, .chmod = on_chmod,
    .utimens = on_utimens,
};

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
  if (argc != 5) return fputs("usage: faulty SOURCE MOUNTPOINT PAGE_FD OWNER_PID\n", stderr), 2;
  mountpoint = argv[2];
  source = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[3]), 0);
  const long owner = syscall(SYS_pidfd_open, atoi(argv[4]), 0);
  if (source < 0 || page == MAP_FAILED || owner < 0) return perror("faulty: source, page or owner"), 1;
  umask(0);

  char *words[] = {"faulty", "-o", "fsname=faulty,default_permissions,allow_other"};
  struct fuse_args arguments = FUSE_ARGS_INIT(3, words);
  struct fuse *served = fuse_new(&arguments, &calls, sizeof calls, NULL);
  if (served == NULL || fuse_mount(served, mountpoint) != 0) return 1;
  pthread_t watching;
  struct fuse_loop_config config = {.clone_fd = 0, .max_idle_threads = 64};
  if (pthread_create(&watching, NULL, end_with_owner, (void *)(intptr_t)owner) != 0) return end_mount(), 1;
  const int failed = fuse_loop_mt(served, &config);
  end_mount();
  _exit(failed < 0);
}
