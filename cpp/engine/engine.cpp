#include "engine/engine.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "engine/ring.hpp"
#include "ground/elapsed_time.hpp"
#include "ground/forks.hpp"
#include "ground/limits.hpp"

namespace penstock {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Size of the chunk that a thread takes: large enough that taking it costs nothing beside the
// reading, small enough that threads finish a ticket together and that a changed limit takes effect
// soon.
constexpr std::int64_t chunk_bytes = 512 << 10;
constexpr std::size_t chunk_runs_max = 256;
constexpr std::size_t many_threads = 32;  // more than processors could use

// Time at the limited rate that an idle or late engine may catch up on.
constexpr double credit_s = 0.025;

// What threads allocate for themselves as they start: above all, their thread-local data, whose
// failure ends the process.
constexpr std::size_t start_bytes = 1 << 20;

// Addresses that nobody else can map while this lives.
class PutAside {
 public:
  explicit PutAside(std::size_t bytes)
      : bytes_(bytes),
        map_(::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  PutAside(const PutAside&) = delete;
  PutAside& operator=(const PutAside&) = delete;
  ~PutAside() {
    if (map_ != MAP_FAILED) ::munmap(map_, bytes_);
  }

 private:
  std::size_t bytes_;
  void* map_;
};

constexpr std::chrono::nanoseconds wait_max = 24h * 365;

std::size_t runs_per_chunk(std::int64_t bytes, std::size_t runs) {
  const std::int64_t mean = std::max<std::int64_t>(1, bytes / static_cast<std::int64_t>(runs));
  return std::clamp<std::size_t>(static_cast<std::size_t>(chunk_bytes / mean), 1, chunk_runs_max);
}

}  // namespace

int probe_io_uring() {
  int error = 0;
  Ring::make(limits::ring_entries, error);
  return error;
}

Engine::Engine(FileColumns files, std::size_t keep_max, Backend backend, Access access,
               std::size_t threads)
    : files_(std::move(files), keep_max),
      owner_(count_forks()),
      threads_wanted_(std::clamp<std::size_t>(threads, 1, limits::threads_max)),
      backend_(backend),
      access_(access),
      debt_time_(Clock::now()),
      helper_(make_mapped_reader(files_, *this)) {
  const std::lock_guard lock(mutex_);
  start_threads();
}

Engine::~Engine() { close(); }

bool Engine::is_inherited() const { return count_forks() != owner_; }

// Start the wanted number of threads, or as many as the system grants; throws if that is none.
// They wait for the mutex, which the caller holds, before they allocate anything: where the last
// stack took all memory that the process may map, what was put aside is there for them.
void Engine::start_threads() {
  const PutAside put_aside(start_bytes);
  while (threads_.size() < threads_wanted_) {
    try {
      threads_.emplace_back(&Engine::work, this, threads_.size());
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;
      return;
    }
  }
}

std::uint64_t Engine::submit(std::vector<Extent> extents, std::vector<std::size_t> runs,
                             std::chrono::nanoseconds patience) {
  auto ticket = std::make_shared<Ticket>();
  ticket->extents = std::move(extents);
  ticket->runs = std::move(runs);
  const std::size_t count = ticket->run_count();
  for (const Extent& extent : ticket->extents) ticket->bytes += extent.length;
  if (count > 0) ticket->chunk_runs = runs_per_chunk(ticket->bytes, count);
  ticket->runs_left.store(count, std::memory_order_relaxed);

  std::unique_lock lock(mutex_);
  if (backend_ == Backend::pread && threads_wanted_ >= many_threads) {
    // Many threads mean remote storage: each of them should have a request to wait for.
    const std::size_t share = (count + threads_wanted_ - 1) / threads_wanted_;
    ticket->chunk_runs = std::clamp<std::size_t>(share, 1, ticket->chunk_runs);
  }
  const std::uint64_t id = last_id_ + 1;
  const std::size_t chunks = (count + ticket->chunk_runs - 1) / ticket->chunk_runs;
  ticket->id = id;
  if (closing_) return id;  // by another thread: dropped like every ticket that has not started
  if (count == 0) {
    completions_.push_back({id, {}});
    ++counters_.tickets;
    done_arrived_.notify_all();
  } else {
    const auto now = Clock::now();
    ticket->turn = now + patience;
    enqueue(std::move(ticket));
    if (unfinished_++ == 0) busy_since_ = now;
  }
  last_id_ = id;
  ++outstanding_;
  // At a limited rate, whoever takes a chunk wakes the thread that paces the next.
  const std::size_t woken = bytes_per_s_ == 0 ? std::min(chunks, threads_wanted_) : pacing_ ? 0 : 1;
  lock.unlock();
  for (std::size_t i = 0; i < woken; ++i) queued_.notify_one();
  return id;
}

void Engine::finish_runs(const TicketPtr& ticket, std::size_t runs) {
  if (ticket->runs_left.fetch_sub(runs, std::memory_order_acq_rel) != runs) return;
  {
    const std::lock_guard lock(mutex_);
    counters_.bytes += static_cast<std::uint64_t>(ticket->bytes);
    counters_.runs += ticket->run_count();
    counters_.extents += ticket->extents.size();
    ++counters_.tickets;
    if (unfinished_ == 1) counters_.busy_ns = busy_ns(Clock::now());
    --unfinished_;
    completions_.push_back({ticket->id, std::move(ticket->failures())});
  }
  done_arrived_.notify_all();
}

std::vector<Completion> Engine::poll(std::chrono::nanoseconds timeout) {
  const auto deadline = Clock::now() + std::clamp<std::chrono::nanoseconds>(timeout, 0ns, wait_max);
  std::unique_lock lock(mutex_);
  while (completions_.empty() && outstanding_ > 0 && !closing_) {
    // At a limited rate a polling thread would have to sleep for its turn; it leaves the work.
    const bool can_help = backend_ == Backend::mmap && bytes_per_s_ == 0;
    if (can_help && !queue_.empty() && Clock::now() < deadline) {
      const Chunk chunk = cut_chunk();
      ++helping_;
      lock.unlock();
      {
        const ElapsedTime elapsed(work_ns_);
        helper_->read(chunk.ticket, chunk.first, chunk.last, chunk.access);
      }
      lock.lock();
      --helping_;
      if (closing_) done_arrived_.notify_all();
      continue;
    }
    if (done_arrived_.wait_until(lock, deadline) == std::cv_status::timeout) break;
  }
  outstanding_ -= completions_.size();
  return std::exchange(completions_, {});
}

// Insert by turn: at the end, unless a ticket waits that is less urgent.
void Engine::enqueue(TicketPtr ticket) {
  auto at = queue_.end();
  if (!queue_.empty() && ticket->turn < queue_.back()->turn) {
    at = std::upper_bound(queue_.begin(), at, ticket,
                          [](const auto& a, const auto& b) { return a->turn < b->turn; });
  }
  queue_.insert(at, std::move(ticket));
}

Engine::Chunk Engine::cut_chunk() {
  const TicketPtr ticket = queue_.front();
  Chunk chunk{ticket, ticket->next_run, 0, backend_, access_};
  chunk.last = std::min(chunk.first + ticket->chunk_runs, ticket->run_count());
  ticket->next_run = chunk.last;
  if (chunk.last == ticket->run_count()) queue_.pop_front();
  return chunk;
}

std::chrono::nanoseconds Engine::settle_debt() {
  if (bytes_per_s_ == 0) return 0ns;
  const auto now = Clock::now();
  const double elapsed_s = std::chrono::duration<double>(now - debt_time_).count();
  debt_bytes_ = std::max(-credit_s * bytes_per_s_, debt_bytes_ - elapsed_s * bytes_per_s_);
  debt_time_ = now;
  if (debt_bytes_ <= 0) return 0ns;
  // A day at most: a duration beyond that would overflow at a rate near zero.
  const double wait_s = std::min(debt_bytes_ / bytes_per_s_, 86400.0);
  return std::chrono::ceil<std::chrono::nanoseconds>(std::chrono::duration<double>(wait_s));
}

// The next chunk for a thread; none if the engine closes, or, unless `wait`, if the thread is
// surplus or nothing can be taken now.
Engine::Chunk Engine::take_chunk(std::unique_lock<std::mutex>& lock, bool wait, std::size_t number) {
  for (;;) {
    if (closing_) return {};
    if (number >= threads_wanted_) {
      if (!wait) return {};
      if (!queue_.empty()) queued_.notify_one();  // it may have been this thread's turn to pace
      resized_.wait(lock);  // apart from queued_: a wake-up meant for a working thread is not lost
      continue;
    }
    if (!queue_.empty()) {
      const auto owed = settle_debt();
      if (owed == 0ns) {
        Chunk chunk = cut_chunk();
        if (bytes_per_s_ != 0) {
          const auto& ticket = *chunk.ticket;
          for (std::size_t i = ticket.runs[chunk.first]; i < ticket.runs[chunk.last]; ++i) {
            debt_bytes_ += static_cast<double>(ticket.extents[i].length);
          }
          if (!queue_.empty()) queued_.notify_one();  // another thread has to pace the next
        }
        return chunk;
      }
      if (!wait) return {};
      if (pacing_) {
        queued_.wait(lock);
      } else {
        pacing_ = true;
        queued_.wait_for(lock, owed);
        pacing_ = false;
      }
      continue;
    }
    if (!wait) return {};
    queued_.wait(lock);
  }
}

void Engine::work(std::size_t number) {
  std::array<std::unique_ptr<Reader>, 3> readers;
  const auto reader = [&](Backend backend) -> Reader& {
    auto& slot = readers[static_cast<std::size_t>(backend)];
    if (!slot && backend == Backend::io_uring) {
      int error = 0;
      slot = make_uring_reader(files_, *this, error);
    }
    if (!slot && backend == Backend::mmap) slot = make_mapped_reader(files_, *this);
    // Used too if a ring is refused this late (memory lock limits), so that the data still arrives.
    if (!slot) slot = make_pread_reader(files_, *this);
    return *slot;
  };
  const auto& ring = readers[static_cast<std::size_t>(Backend::io_uring)];
  for (;;) {
    const bool busy = ring && ring->is_busy();
    Chunk chunk;
    bool closing = false;
    {
      std::unique_lock lock(mutex_);
      chunk = take_chunk(lock, !busy, number);
      closing = closing_;
    }
    if (chunk) {
      const ElapsedTime elapsed(work_ns_);
      // A thread that waits for room to open a file has none open itself.
      while (chunk.backend != Backend::io_uring && ring && ring->is_busy()) ring->progress();
      reader(chunk.backend).read(chunk.ticket, chunk.first, chunk.last, chunk.access);
    } else if (busy) {
      const ElapsedTime elapsed(work_ns_);
      ring->progress();
    } else if (closing) {
      return;
    }
  }
}

void Engine::close() {
  const std::lock_guard one_at_a_time(closing_mutex_);
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    queue_.clear();
    threads.swap(threads_);
  }
  queued_.notify_all();
  resized_.notify_all();
  done_arrived_.notify_all();
  for (std::thread& thread : threads) thread.join();
  std::unique_lock lock(mutex_);
  done_arrived_.wait(lock, [this] { return helping_ == 0; });
  counters_.busy_ns = busy_ns(Clock::now());
  unfinished_ = 0;
  outstanding_ = 0;
  completions_.clear();
  files_.close();
}

void Engine::set_threads(std::size_t threads) {
  {
    const std::lock_guard lock(mutex_);
    threads_wanted_ = std::clamp<std::size_t>(threads, 1, limits::threads_max);
    if (!closing_) start_threads();
  }
  queued_.notify_all();
  resized_.notify_all();
}

void Engine::throttle(double bytes_per_s) {
  {
    const std::lock_guard lock(mutex_);
    settle_debt();  // settle at the old rate
    bytes_per_s_ = bytes_per_s;
    debt_bytes_ = bytes_per_s_ == 0 ? 0 : std::max(0.0, debt_bytes_);
    debt_time_ = Clock::now();
  }
  queued_.notify_all();
}

void Engine::set_backend(Backend backend, Access access) {
  const std::lock_guard lock(mutex_);
  backend_ = backend;
  access_ = access;
}

Counters Engine::counters() const {
  const std::lock_guard lock(mutex_);
  Counters found = counters_;
  found.opens = files_.opens();
  found.open_ns = files_.open_ns();
  found.work_ns = work_ns_.load(std::memory_order_relaxed);
  found.busy_ns = busy_ns(Clock::now());
  return found;
}

// Call with the lock held.
std::uint64_t Engine::busy_ns(Clock::time_point now) const {
  if (unfinished_ == 0) return counters_.busy_ns;
  const std::chrono::nanoseconds since = now - busy_since_;
  return counters_.busy_ns + static_cast<std::uint64_t>(since.count());
}

bool Engine::is_closed() const {
  if (is_inherited()) return true;  // a thread that is not here may have held the lock at the fork
  const std::lock_guard lock(mutex_);
  return closing_;
}

}  // namespace penstock
