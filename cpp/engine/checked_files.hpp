// The files of a dataset: opened by number, checked against what the index recorded.
#pragma once

#include <limits.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/open_files.hpp"

namespace penstock {

// Columns of the index; the owner of the arrays outlives the table.
struct FileColumns {
  std::string root;
  std::span<const char> names;          // all relative paths, joined
  std::span<const std::int64_t> ends;   // path i is names[ends[i-1], ends[i])
  std::span<const std::int64_t> size;   // bytes when indexed
  std::span<const std::int64_t> mtime_ns;
};

// True if an errno says that no more files can be opened now.
bool is_shortage(int error);

enum class Access : std::uint8_t { buffered, direct };

// A descriptor, or errno. CheckedFiles::release closes it if it is `owned`, and unpins it if it is kept.
struct Opened {
  int fd = -1;
  int error = 0;
  std::size_t alignment = 1;  // of offsets, lengths and addresses
  bool owned = false;
  bool direct = false;
  KeptDescriptor* kept = nullptr;
};

// The alignment that O_DIRECT requires for a file; 0 if the file has no usable O_DIRECT.
std::size_t direct_alignment(int fd);
inline constexpr std::size_t alignment_max = 64 << 10;

// A file mapped for reading, or errno.
struct Mapped {
  const std::byte* data = nullptr;
  std::size_t size = 0;  // as indexed; the file may have shrunk since
  int fd = -1;
  int error = 0;
  bool owned = false;
  KeptDescriptor* kept = nullptr;
};

// A kept file that nobody reads, and the tick of the coarse clock at which it was last used.
struct IdleFile {
  CheckedFiles* files;
  std::uint32_t file;
  std::int64_t used;
};

// The files of an index. Up to `keep_max` files are kept open (and mapped) once used, as far as the
// allowance of the process reaches; a table of more files opens a file for each read, which suits a
// tree of one file per sample. All open files count, and never more are open than the allowance. If
// the system lets the process open no more, idle kept files are closed, of any engine; EMFILE is
// reported if there have been none for some time. Thread-safe.
// Throws std::invalid_argument if the columns do not fit each other.
class CheckedFiles {
 public:
  CheckedFiles(FileColumns columns, std::size_t keep_max);
  ~CheckedFiles();
  CheckedFiles(const CheckedFiles&) = delete;
  CheckedFiles& operator=(const CheckedFiles&) = delete;

  std::size_t count() const { return columns_.ends.size(); }
  std::int64_t size(std::uint32_t file) const { return columns_.size[file]; }

  // Open a file; ESTALE if its size or modification time differ from the index. A direct request
  // gives a buffered descriptor (`direct` false) if the file system has no O_DIRECT. If the process
  // may open no more and nothing is idle, waits for that, or reports EMFILE if it may not wait. Only
  // a caller that has no file open may wait: two that had some would wait for each other.
  Opened open(std::uint32_t file, Access access, bool may_wait = true);
  void release(Opened& opened);
  // Close what is kept. Nothing may be open, and nothing can be opened afterwards.
  void close();
  // For the allowance of the process.
  void list_idle(std::vector<IdleFile>& idle);
  bool close_idle(std::uint32_t file);  // false if it is not idle any more

  Mapped map(std::uint32_t file, bool may_wait = true);
  void release(Mapped& mapped);
  // Number of files opened so far, and time that threads spent on opening and closing them.
  std::uint64_t opens() const { return opens_.load(std::memory_order_relaxed); }
  std::uint64_t open_ns() const { return open_ns_.load(std::memory_order_relaxed); }

  // 0 if the open file is as it was indexed; ESTALE if not, or if its name leads to another file by
  // now that is not; ENOENT if it was deleted; errno if that cannot be read.
  int check_unchanged(std::uint32_t file, int fd) const;

 private:
  struct Kept {
    KeptDescriptor buffered;
    KeptDescriptor direct;
    std::atomic<std::size_t> alignment{0};  // of the direct one; written before it
    std::atomic<const std::byte*> data{nullptr};
    std::atomic<std::int64_t> checked{-1};  // tick of the coarse clock at which it was as indexed
    std::atomic<std::int64_t> used{0};  // like it, at which it was last read, or opened
  };

  int check_kept(std::uint32_t file, int fd);
  int open_new(std::uint32_t file, Access access, int& error);
  int open_as_indexed(std::uint32_t file, Access access, int& error);
  using Path = std::array<char, PATH_MAX>;
  int copy_path(std::uint32_t file, Path& path) const;  // 0 or errno
  Opened open_in_room(std::uint32_t file, Access access, KeptDescriptor* slot);
  Opened open_kept(std::uint32_t file, int fd, bool direct, KeptDescriptor& kept);
  bool close_kept(std::uint32_t file);
  void close_owned(int fd);

  FileColumns columns_;
  OpenFiles& process_ = OpenFiles::of_process();
  int root_fd_ = -1;
  int root_error_ = 0;
  std::unique_ptr<Kept[]> kept_;
  std::array<std::mutex, 64> opening_;  // by file number
  std::atomic<std::uint64_t> opens_{0};
  std::atomic<std::uint64_t> open_ns_{0};
  std::atomic<bool> direct_refused_{false};  // by one of the files: the others are not asked
};

}  // namespace penstock
