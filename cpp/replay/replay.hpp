// Replay of a recorded job's operations at their recorded times, or as fast as storage allows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace penstock {

enum class OperationKind : std::uint8_t { read, open, open_direct, stat, close, map };

// Operations of one thread, in order. think_ns: time between the end of the operation before and
// each.
struct OperationColumns {
  std::span<const std::uint8_t> kind;
  std::span<const std::uint32_t> file;
  std::span<const std::int64_t> offset;
  std::span<const std::int64_t> length;
  std::span<const std::int64_t> think_ns;
};

// Result of each operation: bytes or -errno; the delay of its begin; its duration.
struct OperationResults {
  std::span<std::int64_t> result;
  std::span<std::int64_t> late_ns;
  std::span<std::int64_t> duration_ns;
};

// Nanoseconds of the clock by which operations are timed.
std::int64_t monotonic_ns();

// The files of a job, as its threads have them open. Thread-safe.
class Replay {
 public:
  // Path i is names[ends[i-1], ends[i]); the owner of the arrays outlives this. Among files that no
  // operation opens, `keep_max` are kept open and the others are opened for each read. Throws
  // std::invalid_argument if the columns do not fit each other.
  Replay(std::span<const char> names, std::span<const std::int64_t> ends, std::size_t keep_max);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Perform the operations one after the other and return their number, which is less than all only
  // after `stop`. `due_ns` is the time at which the operation before the first should have ended,
  // and afterwards the time at which the last one should have ended. An operation is due when its
  // think time has passed since then; its duration is whatever storage takes. Without `paced`,
  // think times are dropped and nothing is late. Nothing is written or created. Reads through a
  // descriptor that the job opened with O_DIRECT are direct as well. Throws std::invalid_argument
  // for columns that do not fit each other.
  std::size_t perform(const OperationColumns& acts, bool paced, std::int64_t& due_ns,
                      const OperationResults& results);

  void stop() { stopped_.store(true); }

  // Number of files that no operation opens and that were opened for reads; no operation is charged
  // with that time.
  std::size_t unrecorded_opens() const { return unrecorded_opens_.load(); }

 private:
  class Descriptor;
  using Shared = std::shared_ptr<Descriptor>;
  struct Kept {
    std::vector<Shared> opened;  // by operations, and not closed yet
    Shared unrecorded;
  };

  std::string path(std::uint32_t file) const;
  int open(std::uint32_t file, bool direct) const;  // a descriptor, or -errno
  std::int64_t perform(OperationKind act, std::uint32_t file, std::int64_t offset, std::int64_t length,
                       const Descriptor* from, std::span<std::byte> scratch);
  Shared find_descriptor(std::uint32_t file);
  Shared release_descriptor(std::uint32_t file);
  std::mutex& lock_of(std::uint32_t file) { return locks_[file % locks_.size()]; }
  bool wait_until(std::int64_t due_ns) const;

  std::span<const char> names_;
  std::span<const std::int64_t> ends_;
  std::size_t keep_max_;
  std::vector<Kept> kept_;
  std::vector<std::mutex> locks_;
  std::atomic<std::size_t> unrecorded_kept_{0};
  std::atomic<std::size_t> unrecorded_opens_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace penstock
