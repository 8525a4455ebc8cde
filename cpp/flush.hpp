// A memory written to a file behind everything else, and summed on the way.
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

  // Writes the first `write_bytes` of `data` to the start of a file; checksums[i] becomes the
  // CRC-32C of data[ends[i-1], ends[i]). The room is asked for first, so that a full disk is known
  // before anything is written. Nothing is synced. This thread writes, which takes next to no
  // processor; another one, of lower priority, sums. Returns 0 or an errno: ECANCELED after `stop`.
  // Throws std::invalid_argument where the columns do not fit.
  //
  // A file opened with O_DIRECT wants address and `write_bytes` aligned: that is the caller's duty.
  int run(int file, std::span<const std::byte> data, std::size_t write_bytes,
          std::span<const std::int64_t> ends, std::span<std::uint32_t> checksums);

  // Both concern a run under way, too, from its next write on.
  void throttle(double bytes_per_s);
  void stop();

  std::size_t written_bytes() const { return written_.load(); }

 private:
  int write(int file, std::span<const std::byte> data);
  std::size_t turn(std::size_t left_bytes);

  std::mutex mutex_;
  std::condition_variable changed_;
  double bytes_per_s_;
  double due_s_ = 0;  // when what was written so far should have taken until
  std::atomic<bool> stopped_{false};
  std::atomic<std::size_t> written_{0};
};

}  // namespace penstock
