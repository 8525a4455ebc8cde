// A memory written to a file behind everything else.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

namespace penstock {

class Flush {
 public:
  // bytes_per_s: 0 is unlimited.
  explicit Flush(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  Flush(const Flush&) = delete;
  Flush& operator=(const Flush&) = delete;

  // Writes `data` to the start of a file. The room is asked for first, so that a full disk is known
  // before anything is written. Nothing is synced. Returns 0 or an errno: ECANCELED after `stop`.
  //
  // A file opened with O_DIRECT wants address and length aligned: that is the caller's duty.
  int run(int file, std::span<const std::byte> data);

  // Both concern a run under way, too, from its next write on.
  void throttle(double bytes_per_s);
  void stop();

  std::size_t written_bytes() const { return written_.load(); }

 private:
  std::size_t turn(std::size_t left_bytes);

  std::mutex mutex_;
  std::condition_variable changed_;
  double bytes_per_s_;
  double due_s_ = 0;  // when what was written so far should have taken until
  bool stopped_ = false;
  std::atomic<std::size_t> written_{0};
};

}  // namespace penstock
