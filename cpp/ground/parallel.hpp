// Numbered jobs on a few threads; the error of the lowest-numbered job is reported.
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

// The error of the lowest-numbered job, so that the report does not depend on timing.
class JobErrors {
 public:
  void report(std::size_t job, ParseError error) { keep(job, std::move(error), 0); }
  void report(std::size_t job, int error) { keep(job, std::nullopt, error); }

  // False for jobs before the first error: they are still done, because their errors come first.
  bool is_pointless(std::size_t job) const { return job > first_.load(std::memory_order_relaxed); }
  bool has_any() const { return first_.load() != none; }

  std::optional<ParseError> parse_error;
  int read_error = 0;  // errno

 private:
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

  void keep(std::size_t job, std::optional<ParseError> parse, int read) {
    const std::lock_guard lock(mutex_);
    if (job >= first_.load()) return;
    first_.store(job);
    parse_error = std::move(parse);
    read_error = read;
  }

  std::mutex mutex_;
  std::atomic<std::size_t> first_{none};
};

// Call work(job, scratch) for each job, with a scratch for each thread. Running out of memory is an
// error of the job. No thread outlives the call.
template <typename Scratch, typename Work>
void in_parallel(std::size_t jobs, unsigned threads, JobErrors& job_errors, const Work& work) {
  std::atomic<std::size_t> next{0};
  const auto run = [&]() noexcept {
    std::size_t job = 0;
    try {
      Scratch scratch;
      while ((job = next.fetch_add(1)) < jobs) {
        if (!job_errors.is_pointless(job)) work(job, scratch);
      }
    } catch (const std::bad_alloc&) {
      job_errors.report(std::min(job, jobs), ENOMEM);
    }
  };
  std::vector<std::jthread> others;
  const std::size_t wanted = std::min<std::size_t>(threads, jobs);
  others.reserve(wanted);
  try {
    for (std::size_t i = 1; i < wanted; ++i) others.emplace_back(run);
  } catch (const std::system_error&) {
    // The system grants no more threads: those that run do all the work.
  }
  run();
}

}  // namespace penstock
