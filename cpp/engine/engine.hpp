// The engine: tickets in, bytes to their destinations, completions out.
//
// Life of a ticket: submit -> queue -> chunks of runs taken by threads -> all runs ended -> done,
// until poll reports it. A ticket's turn comes when it has waited for as long as it has patience, and
// threads take chunks of the ticket whose turn is first: of tickets of the same patience the oldest
// one is finished first, and what is urgent goes before what waits, though not before what has waited
// for too long. A thread that waits in poll takes chunks itself where the work is copying only
// (mapped), which saves the hand-off between cores.
#pragma once

#include <sys/types.h>

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

#include "engine/files.hpp"
#include "engine/reader.hpp"
#include "engine/ticket.hpp"

namespace penstock {

enum class Backend : std::uint8_t { pread, io_uring, mmap };

struct Done {
  std::uint64_t id;
  std::vector<Failure> failures;
};

struct Counters {
  std::uint64_t bytes;  // asked for by tickets that are done
  std::uint64_t runs;
  std::uint64_t extents;
  std::uint64_t tickets;
  std::uint64_t opens;    // of files
  std::uint64_t open_ns;  // that threads spent on that and on closing them, as part of
  std::uint64_t work_ns;  // the time that threads spent on chunks, waiting for storage included
  std::uint64_t busy_ns;  // while there was a ticket that was not done
};

// 0 where the kernel grants a ring, else errno.
int io_uring_refusal();

class Engine final : private Completions {
 public:
  Engine(FileColumns files, std::size_t keep_max, Backend backend, Access access,
         std::size_t threads);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Takes over extents and runs, already checked. Never waits for storage.
  std::uint64_t submit(std::vector<Extent> extents, std::vector<std::size_t> runs,
                       std::chrono::nanoseconds patience = {});
  // Waits until something is done, nothing is outstanding, the engine closes, or the time is over.
  std::vector<Done> poll(std::chrono::nanoseconds timeout);
  // Drops what no thread has taken, waits for the rest, joins the threads. When it returns nothing
  // writes to any destination, also where several threads close at once.
  void close();

  void resize(std::size_t threads);    // takes effect within one chunk
  void throttle(double bytes_per_s);   // 0: unlimited
  void use(Backend backend, Access access);  // for chunks taken from now on
  Counters counters() const;
  std::size_t file_count() const { return files_.count(); }
  bool closed() const;
  // Threads do not survive fork: in a child nothing of this object may be used or destroyed.
  bool inherited() const;

 private:
  struct Chunk {
    TicketPtr ticket;
    std::size_t first = 0;
    std::size_t last = 0;
    Backend backend = Backend::pread;
    Access access = Access::buffered;
    explicit operator bool() const { return ticket != nullptr; }
  };

  void ended(const TicketPtr& ticket, std::size_t runs) override;
  void work(std::size_t number);
  Chunk take(std::unique_lock<std::mutex>& lock, bool wait, std::size_t number);
  std::uint64_t busy_ns(std::chrono::steady_clock::time_point now) const;
  void enqueue(TicketPtr ticket);
  Chunk cut();  // the next chunk of the front ticket; the queue is not empty
  std::chrono::nanoseconds debt_wait();
  void start_threads();

  Files files_;
  const pid_t owner_;

  mutable std::mutex mutex_;
  std::condition_variable queued_;
  std::condition_variable resized_;
  std::condition_variable done_arrived_;
  std::deque<TicketPtr> queue_;  // by turn; of equals, the oldest first
  std::vector<Done> done_;
  std::vector<std::thread> threads_;
  std::size_t threads_wanted_;
  Backend backend_;
  Access access_;
  bool closing_ = false;
  bool pacing_ = false;  // a thread waits until the rate allows the next chunk; one is enough
  std::size_t helping_ = 0;  // threads that copy in poll
  std::uint64_t last_id_ = 0;
  std::uint64_t outstanding_ = 0;
  Counters counters_{};
  std::size_t unfinished_ = 0;  // tickets whose runs have not all ended
  std::chrono::steady_clock::time_point busy_since_;  // while there are such
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
