// Numbered jobs on a few threads; the first thing that went wrong, by number, is what is told.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "ground/parse_error.hpp"

namespace penstock {

// The trouble of the lowest-numbered job, so that what is told depends on no timing.
class Troubles {
 public:
  void flaw(std::size_t job, Flaw found) { keep(job, std::move(found), 0); }
  void error(std::size_t job, int found) { keep(job, std::nullopt, found); }

  // Jobs before the first trouble are still done: theirs would come first.
  bool pointless(std::size_t job) const { return job > first_.load(std::memory_order_relaxed); }
  bool any() const { return first_.load() != none; }

  std::optional<Flaw> what;
  int code = 0;

 private:
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

  void keep(std::size_t job, std::optional<Flaw> found, int error) {
    const std::lock_guard lock(mutex_);
    if (job >= first_.load()) return;
    first_.store(job);
    what = std::move(found);
    code = error;
  }

  std::mutex mutex_;
  std::atomic<std::size_t> first_{none};
};

// work(job, scratch) for each job, each thread with a scratch of its own. Running out of memory is
// a trouble of the job; no thread outlives the call.
template <typename Scratch, typename Work>
void in_parallel(std::size_t jobs, unsigned threads, Troubles& troubles, const Work& work) {
  std::atomic<std::size_t> next{0};
  const auto run = [&]() noexcept {
    std::size_t job = 0;
    try {
      Scratch scratch;
      while ((job = next.fetch_add(1)) < jobs) {
        if (!troubles.pointless(job)) work(job, scratch);
      }
    } catch (const std::bad_alloc&) {
      troubles.error(std::min(job, jobs), ENOMEM);
    }
  };
  std::vector<std::jthread> others;
  const std::size_t wanted = std::min<std::size_t>(threads, jobs);
  others.reserve(wanted);
  try {
    for (std::size_t i = 1; i < wanted; ++i) others.emplace_back(run);
  } catch (const std::system_error&) {
    // No more threads to be had: those there are do it all.
  }
  run();
}

}  // namespace penstock
