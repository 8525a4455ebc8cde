#include "engine/checked_files.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "engine/storage.hpp"
#include "ground/elapsed_time.hpp"

namespace penstock {
namespace {

// Alignment if the kernel cannot be asked: right for every block device in use.
constexpr std::size_t alignment_default = 4096;

// Reads end in milliseconds and then their files can be closed; the wait is short enough for the
// user to see soon that it is of no use.
constexpr int room_waits_max = 50;
constexpr std::chrono::milliseconds room_wait{2};

}  // namespace

bool is_shortage(int error) { return error == EMFILE || error == ENFILE; }

std::size_t direct_alignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx info {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    const std::size_t both = std::max(info.stx_dio_offset_align, info.stx_dio_mem_align);
    return info.stx_dio_offset_align == 0 || both > alignment_max ? 0 : both;
  }
#else
  (void)fd;
#endif
  return alignment_default;
}

CheckedFiles::CheckedFiles(FileColumns columns, std::size_t keep_max) : columns_(std::move(columns)) {
  if (columns_.size.size() != count() || columns_.mtime_ns.size() != count()) {
    throw std::invalid_argument("file columns differ in length");
  }
  const char* root = columns_.root.empty() ? "." : columns_.root.c_str();
  if (count() <= keep_max) kept_ = std::make_unique<Kept[]>(std::max<std::size_t>(count(), 1));
  do {
    root_fd_ = ::open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    root_error_ = root_fd_ < 0 ? errno : 0;
  } while (is_shortage(root_error_) && process_.close_idle());
  if (kept_) process_.add(this);
}

CheckedFiles::~CheckedFiles() { close(); }

void CheckedFiles::close() {
  if (kept_) process_.remove(this);
  for (std::size_t i = 0; kept_ && i < count(); ++i) close_kept(static_cast<std::uint32_t>(i));
  if (root_fd_ >= 0) ::close(root_fd_);
  root_fd_ = -1;
  root_error_ = EBADF;
}

// Call with the file's lock, or after `remove`. False if a reader has it.
bool CheckedFiles::close_kept(std::uint32_t file) {
  Kept& kept = kept_[file];
  bool closed = false;
  if (const int fd = kept.buffered.take_idle(); fd >= 0) {
    // The map is used by those only who have pinned the descriptor.
    if (const std::byte* data = kept.data.exchange(nullptr)) {
      ::munmap(const_cast<std::byte*>(data), static_cast<std::size_t>(columns_.size[file]));
    }
    ::close(fd);
    closed = true;
    process_.return_room();
  }
  if (const int fd = kept.direct.take_idle(); fd >= 0) {
    ::close(fd);
    closed = true;
    process_.return_room();
  }
  return closed;
}

void CheckedFiles::list_idle(std::vector<IdleFile>& idle) {
  for (std::size_t i = 0; i < count(); ++i) {
    if (!kept_[i].buffered.is_kept() && !kept_[i].direct.is_kept()) continue;
    idle.push_back({this, static_cast<std::uint32_t>(i),
                    kept_[i].used.load(std::memory_order_relaxed)});
  }
}

bool CheckedFiles::close_idle(std::uint32_t file) {
  // Not to wait for an open, which may be a round trip, while others wait for the allowance.
  const std::unique_lock turn(opening_[file % opening_.size()], std::try_to_lock);
  return turn && close_kept(file);
}

int CheckedFiles::open_new(std::uint32_t file, Access access, int& error) {
  const ElapsedTime elapsed(open_ns_);
  opens_.fetch_add(1, std::memory_order_relaxed);
  return open_as_indexed(file, access, error);
}

void CheckedFiles::close_owned(int fd) {
  const ElapsedTime elapsed(open_ns_);
  ::close(fd);
  process_.return_room();
}

int CheckedFiles::open_as_indexed(std::uint32_t file, Access access, int& error) {
  if (root_fd_ < 0) {
    error = root_error_;
    return -1;
  }
  Path path;
  error = copy_path(file, path);
  if (error != 0) return -1;
  const int flags = O_RDONLY | O_CLOEXEC | (access == Access::direct ? O_DIRECT : 0);
  // NONBLOCK: if a pipe has taken the place of a file, opening it must not wait for a writer.
  const int fd = ::openat(root_fd_, path.data(), flags | O_NONBLOCK);
  if (fd < 0) {
    error = errno;
    return -1;
  }
  error = check_unchanged(file, fd);
  // A ring reports what is not in the page cache as EAGAIN while NONBLOCK is set.
  if (error == 0 && ::fcntl(fd, F_SETFL, flags) != 0) error = errno;
  if (error == 0) return fd;
  ::close(fd);
  return -1;
}

int CheckedFiles::copy_path(std::uint32_t file, Path& path) const {
  const std::int64_t start = file == 0 ? 0 : columns_.ends[file - 1];
  const std::int64_t stop = columns_.ends[file];
  if (start < 0 || stop < start || stop > static_cast<std::int64_t>(columns_.names.size())) {
    return ENOENT;
  }
  const auto begin = static_cast<std::size_t>(start);
  const auto length = static_cast<std::size_t>(stop - start);
  if (length >= path.size()) return ENAMETOOLONG;
  std::memcpy(path.data(), columns_.names.data() + begin, length);
  path[length] = '\0';
  return 0;
}

int CheckedFiles::check_unchanged(std::uint32_t file, int fd) const {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno;
  // A file without a name has been deleted or replaced since it was opened, unless its file system
  // counts no names: what the name leads to now decides.
  if (info.st_nlink == 0) {
    Path path;
    if (const int error = copy_path(file, path); error != 0) return error;
    if (::fstatat(root_fd_, path.data(), &info, 0) != 0) return errno;
  }
  const std::int64_t mtime_ns =
      std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  if (!S_ISREG(info.st_mode)) return ESTALE;
  const bool same = info.st_size == columns_.size[file] && mtime_ns == columns_.mtime_ns[file];
  return same ? 0 : ESTALE;
}

// Check a file that stays open again, once a tick of the coarse clock (some milliseconds): a system
// call for each read of a small record would cost a quarter of the read.
int CheckedFiles::check_kept(std::uint32_t file, int fd) {
  const std::int64_t tick = read_tick();
  auto& checked = kept_[file].checked;
  if (checked.load(std::memory_order_relaxed) == tick) return 0;
  kept_[file].used.store(tick, std::memory_order_relaxed);
  const int error = check_unchanged(file, fd);
  if (error == 0) checked.store(tick, std::memory_order_relaxed);
  return error;
}

Opened CheckedFiles::open(std::uint32_t file, Access access, bool may_wait) {
  if (access == Access::direct && direct_refused_.load(std::memory_order_relaxed)) {
    access = Access::buffered;
  }
  const bool direct = access == Access::direct;
  KeptDescriptor* slot = kept_ ? (direct ? &kept_[file].direct : &kept_[file].buffered) : nullptr;
  for (int waits = 0;;) {
    if (slot != nullptr) {
      if (const int fd = slot->pin(); fd >= 0) return open_kept(file, fd, direct, *slot);
    }
    const Room room = process_.take_room(may_wait);
    if (room == Room::none) {
      // A reader that has others releases them first. One that has none waits for as long as all
      // that is allowed is being read: the threads that read have theirs and wait for storage only,
      // so this ends as their reads do, and storage that stalls is no error here.
      if (!may_wait) return {-1, EMFILE, 1, false, false, nullptr};
      std::this_thread::sleep_for(room_wait);
      continue;
    }
    const Opened opened = open_in_room(file, access, room == Room::kept ? slot : nullptr);
    if (opened.error == EINVAL && direct) {
      direct_refused_.store(true, std::memory_order_relaxed);
      return open(file, Access::buffered, may_wait);
    }
    // What others have opened beyond the allowance may leave less than that.
    const bool is_short = is_shortage(opened.error);
    if (is_short && process_.close_idle()) continue;
    if (!is_short || !may_wait || waits == room_waits_max) return opened;
    std::this_thread::sleep_for(room_wait);
    ++waits;
  }
}

// Open a file in the room taken for it, and keep it if there is a slot. The room is returned unless
// it is used.
Opened CheckedFiles::open_in_room(std::uint32_t file, Access access, KeptDescriptor* slot) {
  const bool direct = access == Access::direct;
  std::unique_lock<std::mutex> turn;
  if (slot != nullptr) {
    // Other threads that want the same file wait: an open may be a round trip to a busy server.
    turn = std::unique_lock(opening_[file % opening_.size()]);
    if (const int fd = slot->pin(); fd >= 0) {
      process_.return_room();
      return open_kept(file, fd, direct, *slot);
    }
  }
  int error = 0;
  const int fd = open_new(file, access, error);
  const std::size_t alignment = direct && fd >= 0 ? direct_alignment(fd) : 1;
  if (fd >= 0 && alignment == 0) {
    ::close(fd);
    error = EINVAL;
  }
  if (error != 0) {
    process_.return_room();
    return {-1, error, 1, false, false, nullptr};
  }
  // Pages that the kernel reads ahead of planned reads are mostly those that other ranks read.
  // On local disks readahead stays on: there it also makes the page cache use large pages,
  // which are cheaper.
  if (kept_ && !direct && is_remote(fd)) ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  if (slot == nullptr) return {fd, 0, alignment, true, direct, nullptr};
  if (direct) kept_[file].alignment.store(alignment, std::memory_order_relaxed);
  kept_[file].used.store(read_tick(), std::memory_order_relaxed);
  slot->keep(fd);
  return {fd, 0, alignment, false, direct, slot};
}

// A kept file, which is pinned.
Opened CheckedFiles::open_kept(std::uint32_t file, int fd, bool direct, KeptDescriptor& kept) {
  if (const int error = check_kept(file, fd); error != 0) {
    kept.unpin();
    return {-1, error, 1, false, false, nullptr};
  }
  const std::size_t alignment =
      direct ? kept_[file].alignment.load(std::memory_order_relaxed) : 1;
  return {fd, 0, alignment, false, direct, &kept};
}

void CheckedFiles::release(Opened& opened) {
  if (opened.owned) close_owned(opened.fd);
  if (opened.kept != nullptr) opened.kept->unpin();
  opened = {};
}

Mapped CheckedFiles::map(std::uint32_t file, bool may_wait) {
  const auto size = static_cast<std::size_t>(columns_.size[file]);
  Opened opened = open(file, Access::buffered, may_wait);
  if (opened.fd < 0) return {nullptr, 0, -1, opened.error, false, nullptr};
  if (!opened.owned) {
    if (const std::byte* data = kept_[file].data.load(std::memory_order_acquire)) {
      return {data, size, opened.fd, 0, false, opened.kept};
    }
  }
  // An empty map is EINVAL.
  if (size == 0) return {nullptr, 0, opened.fd, 0, opened.owned, opened.kept};
  void* fresh = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, opened.fd, 0);
  if (fresh == MAP_FAILED) {
    const int error = errno;
    release(opened);
    return {nullptr, 0, -1, error, false, nullptr};
  }
  const auto* data = static_cast<const std::byte*>(fresh);
  if (opened.owned) return {data, size, opened.fd, 0, true, nullptr};
  // Random access: readahead around a fault would fetch pages that nobody requested.
  ::madvise(fresh, size, MADV_RANDOM);
  const std::byte* expected = nullptr;
  if (!kept_[file].data.compare_exchange_strong(expected, data, std::memory_order_acq_rel)) {
    ::munmap(fresh, size);
    data = expected;
  }
  return {data, size, opened.fd, 0, false, opened.kept};
}

void CheckedFiles::release(Mapped& mapped) {
  if (mapped.owned) {
    if (mapped.data != nullptr) ::munmap(const_cast<std::byte*>(mapped.data), mapped.size);
    close_owned(mapped.fd);
  }
  if (mapped.kept != nullptr) mapped.kept->unpin();
  mapped = {};
}

}  // namespace penstock
