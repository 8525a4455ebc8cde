// A ticket: one submission on its way, and the report on it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace penstock {

// A byte range and its destination.
struct Extent {
  std::int64_t offset;
  std::int64_t length;
  std::byte* target;
  std::uint32_t file;
};

// An extent that did not arrive whole; see penstock.engine.Failure.
struct Failure {
  std::size_t extent;
  int error;
  std::int64_t got;
};

class Ticket {
 public:
  std::uint64_t id = 0;
  std::chrono::steady_clock::time_point turn;  // the earliest goes first
  std::vector<Extent> extents;
  std::vector<std::size_t> runs;  // run j is extents [runs[j], runs[j+1])
  std::int64_t bytes = 0;
  std::size_t chunk_runs = 1;  // runs that one thread takes at a time
  std::size_t next_run = 0;    // guarded by the engine's queue
  std::atomic<std::size_t> runs_left{0};

  std::size_t run_count() const { return runs.empty() ? 0 : runs.size() - 1; }
  std::span<const Extent> run(std::size_t j) const {
    return {extents.data() + runs[j], runs[j + 1] - runs[j]};
  }

  // If no memory is left to record a failure, the process ends: missing bytes must not pass for
  // data.
  void fail(std::size_t extent, int error, std::int64_t got) noexcept {
    const std::lock_guard lock(mutex_);
    failures_.push_back({extent, error, got});
  }
  // Valid once all runs are done.
  std::vector<Failure>& failures() { return failures_; }

 private:
  std::mutex mutex_;
  std::vector<Failure> failures_;
};

using TicketPtr = std::shared_ptr<Ticket>;

// The receiver of ended runs, successful or not; readers call it on any thread.
class RunObserver {
 public:
  virtual void finish_runs(const TicketPtr& ticket, std::size_t runs) = 0;

 protected:
  ~RunObserver() = default;
};

}  // namespace penstock
