// The time that something took, added to a sum.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace penstock {

// Adds the nanoseconds that it lives.
class Timed {
 public:
  explicit Timed(std::atomic<std::uint64_t>& sum_ns)
      : sum_ns_(sum_ns), began_(std::chrono::steady_clock::now()) {}
  ~Timed() {
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - began_;
    sum_ns_.fetch_add(static_cast<std::uint64_t>(took.count()), std::memory_order_relaxed);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  std::atomic<std::uint64_t>& sum_ns_;
  const std::chrono::steady_clock::time_point began_;
};

}  // namespace penstock
