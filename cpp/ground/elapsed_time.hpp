// Time that a scope takes, added to a sum; and the coarse clock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>

namespace penstock {

// The coarse clock: it costs no system call, and ticks every few milliseconds.
inline std::int64_t read_tick() {
  timespec now {};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Adds its lifetime, in nanoseconds, to a sum.
class ElapsedTime {
 public:
  explicit ElapsedTime(std::atomic<std::uint64_t>& sum_ns)
      : sum_ns_(sum_ns), began_(std::chrono::steady_clock::now()) {}
  ~ElapsedTime() {
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - began_;
    sum_ns_.fetch_add(static_cast<std::uint64_t>(took.count()), std::memory_order_relaxed);
  }
  ElapsedTime(const ElapsedTime&) = delete;
  ElapsedTime& operator=(const ElapsedTime&) = delete;

 private:
  std::atomic<std::uint64_t>& sum_ns_;
  const std::chrono::steady_clock::time_point began_;
};

}  // namespace penstock
