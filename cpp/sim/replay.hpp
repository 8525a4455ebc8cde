// A recorded job's operations, done again at their times: one thread of the job after the other's
// next operation, or as fast as it goes.
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

enum class Act : std::uint8_t { read, open, open_direct, stat, close, map };

// Operations of one thread, in order. think_ns: what passes before each, since the one before ended.
struct ActColumns {
  std::span<const std::uint8_t> kind;
  std::span<const std::uint32_t> file;
  std::span<const std::int64_t> offset;
  std::span<const std::int64_t> length;
  std::span<const std::int64_t> think_ns;
};

// What came of each: bytes or -errno; how much later it began than it should have; how long it took.
struct ActResults {
  std::span<std::int64_t> result;
  std::span<std::int64_t> late_ns;
  std::span<std::int64_t> duration_ns;
};

// Nanoseconds of the clock by which operations are timed.
std::int64_t monotonic_ns();

// The files of a job, as its threads have them open. All of it may be called from any thread.
class Replay {
 public:
  // Path i is names[ends[i-1], ends[i]); the owner of the arrays outlives this. Of files whose
  // opening is not among the operations, `keep_max` are kept open and the others opened for each
  // read. Throws std::invalid_argument where the columns do not fit each other.
  Replay(std::span<const char> names, std::span<const std::int64_t> ends, std::size_t keep_max);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Does the operations one after the other. `due_ns` is when the operation before the first
  // should have ended, and afterwards when the last one should have: an operation is due when its
  // think time has passed since then, and takes as long as it takes. Without `paced` think times
  // are dropped, and nothing is late. Nothing is written or created. Reads through a descriptor
  // that the job opened with O_DIRECT are direct as well. Returns how many were done: less than
  // all after `stop`. Throws std::invalid_argument for columns that do not fit.
  std::size_t perform(const ActColumns& acts, bool paced, std::int64_t& due_ns,
                      const ActResults& results);

  void stop() { stopped_.store(true); }

  // Files that were opened because the operations do not say when; the time is nobody's.
  std::size_t untold_opens() const { return untold_opens_.load(); }

 private:
  class Descriptor;
  using Shared = std::shared_ptr<Descriptor>;
  struct Kept {
    std::vector<Shared> opened;  // by operations, and not closed yet
    Shared untold;
  };

  std::string path(std::uint32_t file) const;
  int open(std::uint32_t file, bool direct) const;  // a descriptor, or -errno
  std::int64_t perform(Act act, std::uint32_t file, std::int64_t offset, std::int64_t length,
                       const Descriptor* from, std::span<std::byte> scratch);
  Shared descriptor(std::uint32_t file);
  Shared closing(std::uint32_t file);
  std::mutex& lock_of(std::uint32_t file) { return locks_[file % locks_.size()]; }
  bool wait_until(std::int64_t due_ns) const;

  std::span<const char> names_;
  std::span<const std::int64_t> ends_;
  std::size_t keep_max_;
  std::vector<Kept> kept_;
  std::vector<std::mutex> locks_;
  std::atomic<std::size_t> untold_kept_{0};
  std::atomic<std::size_t> untold_opens_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace penstock
