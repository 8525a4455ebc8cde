// The engine: tickets in, bytes to their destinations, observer out.
//
// Life of a ticket: submit -> queue -> chunks of runs taken by threads -> all runs ended -> done,
// until poll reports it. A ticket's turn is the time of its submission plus its patience, and
// threads take chunks of the ticket with the earliest turn. Among tickets of equal patience the
// oldest is finished first; an urgent ticket goes before a patient one, unless that one has waited
// longer than its patience. A thread that waits in poll takes chunks itself if the work is copying
// only (mapped), which saves the hand-off between cores.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/checked_files.hpp"
#include "engine/reader.hpp"
#include "engine/ticket.hpp"

namespace penstock {

enum class Backend : std::uint8_t { pread, io_uring, mmap };

struct Completion {
  std::uint64_t id;
  std::vector<Failure> failures;
};

struct Counters {
  std::uint64_t bytes;  // of finished tickets, as are runs and extents
  std::uint64_t runs;
  std::uint64_t extents;
  std::uint64_t tickets;
  std::uint64_t opens;    // number of files opened
  std::uint64_t open_ns;  // time that threads spent on opening and closing files; part of work_ns
  std::uint64_t work_ns;  // time that threads spent on chunks, waiting for storage included
  std::uint64_t busy_ns;  // time during which a ticket was unfinished
};

// 0 if the kernel grants a ring, else errno.
int probe_io_uring();

class Engine final : private RunObserver {
 public:
  Engine(FileColumns files, std::size_t keep_max, Backend backend, Access access,
         std::size_t threads);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queue extents and runs, which are already checked. Never waits for storage.
  std::uint64_t submit(std::vector<Extent> extents, std::vector<std::size_t> runs,
                       std::chrono::nanoseconds patience = {});
  // Wait until a ticket is done, nothing is outstanding, the engine closes, or the time is over.
  std::vector<Completion> poll(std::chrono::nanoseconds timeout);
  // Drop the chunks that no thread has taken, wait for the others, and join the threads. After it
  // returns nothing writes to any destination, even if several threads close at once.
  void close();

  void set_threads(std::size_t threads);    // takes effect within one chunk
  void throttle(double bytes_per_s);   // 0: unlimited
  void set_backend(Backend backend, Access access);  // for chunks taken from now on
  Counters counters() const;
  std::size_t file_count() const { return files_.count(); }
  bool is_closed() const;
  // True in a forked child: it has no threads, and must neither use nor destroy this object.
  bool is_inherited() const;

 private:
  struct Chunk {
    TicketPtr ticket;
    std::size_t first = 0;
    std::size_t last = 0;
    Backend backend = Backend::pread;
    Access access = Access::buffered;
    explicit operator bool() const { return ticket != nullptr; }
  };

  void finish_runs(const TicketPtr& ticket, std::size_t runs) override;
  void work(std::size_t number);
  Chunk take_chunk(std::unique_lock<std::mutex>& lock, bool wait, std::size_t number);
  std::uint64_t busy_ns(std::chrono::steady_clock::time_point now) const;
  void enqueue(TicketPtr ticket);
  Chunk cut_chunk();  // the next chunk of the front ticket; the queue is not empty
  std::chrono::nanoseconds settle_debt();
  void start_threads();

  CheckedFiles files_;
  const std::uint32_t owner_;

  mutable std::mutex mutex_;
  std::condition_variable queued_;
  std::condition_variable resized_;
  std::condition_variable done_arrived_;
  std::deque<TicketPtr> queue_;  // by turn; equal turns by age
  std::vector<Completion> completions_;
  std::vector<std::thread> threads_;
  std::size_t threads_wanted_;
  Backend backend_;
  Access access_;
  bool closing_ = false;
  bool pacing_ = false;  // one thread waits until the rate allows the next chunk
  std::size_t helping_ = 0;  // threads that copy inside poll
  std::uint64_t last_id_ = 0;
  std::uint64_t outstanding_ = 0;
  Counters counters_{};
  std::size_t unfinished_ = 0;  // tickets whose runs have not all ended
  std::chrono::steady_clock::time_point busy_since_;  // valid while there are such
  std::atomic<std::uint64_t> work_ns_{0};

  // Bandwidth: bytes taken beyond what the rate has allowed so far. A chunk may start when there
  // is no debt, so a change of rate takes effect at once. A little credit makes up for late wakers.
  double bytes_per_s_ = 0;
  double debt_bytes_ = 0;
  std::chrono::steady_clock::time_point debt_time_;

  std::mutex closing_mutex_;  // taken before mutex_
  std::unique_ptr<Reader> helper_;  // the mapped reader of polling threads; has no state
};

}  // namespace penstock
