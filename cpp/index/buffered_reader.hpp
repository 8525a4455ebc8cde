// A window on a file that walkers move forward: it reads the file in blocks where records are small,
// and only around what is asked for where they are large.
//
// Which of the two costs less is measured while walking: how far the next place that is asked for
// lies from the last one, on average. A read of a few KiB costs one latency; a block costs its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "ground/parse_error.hpp"
#include "index/source.hpp"

namespace penstock {

struct Reach {
  std::size_t block_bytes;     // of one read while streaming
  std::size_t hop_bytes;       // of one read while hopping
  std::uint64_t hop_distance;  // from this mean distance on it hops; 0: never

  // A small read of a local file costs about as much as copying 8 KiB when cached, a page fault of
  // the disk when not; 64 KiB between them is where hopping wins in both cases.
  static constexpr Reach local() { return {1u << 19, 4096, 64 * 1024}; }
  // One request costs milliseconds.
  static constexpr Reach remote() { return {4u << 20, 64 * 1024, 32u << 20}; }
};

class Window {
 public:
  Window(Source& source, const Reach& reach);

  // The bytes [offset, offset + length), valid until the next call; null where the file has less,
  // or reading failed. `length` is at most `limits::header_bytes_max`.
  const std::byte* at(std::uint64_t offset, std::size_t length) {
    if (offset >= hop_end_) note(offset);
    if (offset >= start_ && length <= filled_ && offset - start_ <= filled_ - length)
      return buffer_.get() + (offset - start_);
    return fetch(offset, length);
  }

  // Some of the bytes from `offset` on: at least one, at most `most`; empty where there are none.
  std::span<const std::byte> some(std::uint64_t offset, std::uint64_t most);

  std::uint64_t size() const { return source_.size; }
  int error() const { return error_; }  // errno of the read that failed, or 0

  // Why `at` gave nothing although the file should have it.
  Flaw vanished(std::uint64_t offset) const;

 private:
  // Counts the reads that hopping would have taken.
  void note(std::uint64_t offset) {
    ++hops_;
    hop_end_ = offset + reach_.hop_bytes;
  }
  const std::byte* fetch(std::uint64_t offset, std::size_t length);
  void choose(std::uint64_t offset);

  Source& source_;
  Reach reach_;
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t capacity_;
  std::uint64_t start_ = 0;  // of what the buffer holds
  std::size_t filled_ = 0;
  std::uint64_t hop_end_ = 0;
  std::uint64_t hops_ = 0;
  std::uint64_t measured_from_ = 0;
  bool hopping_ = false;
  int error_ = 0;
};

}  // namespace penstock
