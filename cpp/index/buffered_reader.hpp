// A reader of a file that walkers read forward: it reads whole blocks if records are small, and
// only the requested bytes and their surroundings (a hop) if they are large.
//
// The cheaper of the two is measured while walking, by the mean distance between requested places.
// A read of a few KiB costs one latency; a block costs its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>

#include "ground/parse_error.hpp"
#include "index/source.hpp"

namespace penstock {

struct ReadPolicy {
  std::size_t block_bytes;     // of one read while streaming
  std::size_t hop_bytes;       // of one read while hopping
  std::uint64_t hop_distance;  // mean distance from which on hopping is used; 0: never

  // A small read of a local file costs about as much as copying 8 KiB when cached, a page fault of
  // the disk when not; from a distance of 64 KiB on hopping wins in both cases.
  static constexpr ReadPolicy local() { return {1u << 19, 4096, 64 * 1024}; }
  // One request costs milliseconds.
  static constexpr ReadPolicy remote() { return {4u << 20, 64 * 1024, 32u << 20}; }
};

class BufferedReader {
 public:
  // begin: where reading begins, from which distances are measured.
  BufferedReader(Source& source, const ReadPolicy& policy, std::uint64_t begin = 0);

  // The bytes [offset, offset + length), valid until the next call; null if the file has less,
  // or if reading failed. `length` is at most `limits::header_bytes_max`.
  const std::byte* view(std::uint64_t offset, std::size_t length) {
    if (offset >= hop_end_) count_hop(offset);
    if (offset >= start_ && length <= filled_ && offset - start_ <= filled_ - length)
      return data_ + (offset - start_);
    return fetch(offset, length);
  }

  // Some of the bytes from `offset` on: at least one, at most `most`; empty if there are none.
  std::span<const std::byte> view_some(std::uint64_t offset, std::uint64_t most);

  std::uint64_t size() const { return source_.size; }
  int error() const { return error_; }  // errno of the read that failed, or 0

  // The error to report if `view` gave nothing although the file should have the bytes.
  ParseError describe_truncation(std::uint64_t offset) const;

 private:
  static constexpr std::uint64_t page_bytes = 4096;

  // Count the reads that hopping would have taken.
  void count_hop(std::uint64_t offset) {
    ++hops_;
    hop_end_ = offset + policy_.hop_bytes;
  }
  const std::byte* fetch(std::uint64_t offset, std::size_t length);
  void choose_mode(std::uint64_t offset);

  Source& source_;
  ReadPolicy policy_;
  struct Delete {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, std::align_val_t{page_bytes}); }
  };
  std::unique_ptr<std::byte, Delete> buffer_;
  std::byte* data_ = nullptr;  // what the buffer holds, as far behind a page as in the file
  std::size_t capacity_;
  std::uint64_t start_ = 0;  // of what the buffer holds
  std::size_t filled_ = 0;
  std::uint64_t hop_end_ = 0;
  std::uint64_t hops_ = 0;
  std::uint64_t measured_from_;
  bool hopping_ = false;
  int error_ = 0;
};

}  // namespace penstock
