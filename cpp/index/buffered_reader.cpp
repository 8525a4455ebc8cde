#include "index/buffered_reader.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "ground/limits.hpp"

namespace penstock {
namespace {

constexpr std::uint64_t hops_measured = 8;  // before the mean distance is believed

}  // namespace

BufferedReader::BufferedReader(Source& source, const ReadPolicy& policy, std::uint64_t begin)
    : source_(source),
      policy_(policy),
      capacity_(static_cast<std::size_t>(std::min<std::uint64_t>(
          std::max(policy.block_bytes, limits::header_bytes_max), source.size))),
      measured_from_(begin) {
  const std::size_t bytes = capacity_ + page_bytes;
  buffer_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{page_bytes})));
}

void BufferedReader::choose_mode(std::uint64_t offset) {
  if (policy_.hop_distance == 0 || hops_ < hops_measured || offset < measured_from_) return;
  const std::uint64_t mean = (offset - measured_from_) / hops_;
  // Two thresholds, so that records near one do not switch all the time.
  hopping_ = mean >= (hopping_ ? policy_.hop_distance / 2 : policy_.hop_distance);
  measured_from_ = offset;
  hops_ = 0;
}

const std::byte* BufferedReader::fetch(std::uint64_t offset, std::size_t length) {
  if (error_ != 0 || offset > source_.size || length > source_.size - offset) return nullptr;
  if (length > capacity_) return nullptr;
  choose_mode(offset);
  // Bytes that are there already are kept; those that follow are read.
  std::size_t kept = 0;
  // AMD's processors copy at a sixth of their rate to a place that lies 1 to 31 bytes further behind a
  // page than the source does, as what malloc() takes of pages of its own does: here they are alike.
  std::byte* const data = buffer_.get() + offset % page_bytes;
  if (offset >= start_ && offset - start_ < filled_) {
    kept = filled_ - static_cast<std::size_t>(offset - start_);
    std::memmove(data, data_ + (offset - start_), kept);
  }
  data_ = data;
  start_ = offset;
  filled_ = kept;
  // Blocks end where pages do, so that most copies are of whole pages.
  const std::uint64_t page = std::min<std::uint64_t>(page_bytes, policy_.block_bytes);
  const std::size_t block = policy_.block_bytes - static_cast<std::size_t>(offset % page);
  const std::size_t wanted = hopping_ ? policy_.hop_bytes : block;
  const auto target = static_cast<std::size_t>(
      std::min<std::uint64_t>(std::max(wanted, length), source_.size - offset));
  if (target > kept) {
    const std::int64_t n = source_.read(offset + kept, {data + kept, target - kept});
    if (n < 0) {
      error_ = static_cast<int>(-n);
      return nullptr;
    }
    filled_ += std::min(static_cast<std::size_t>(n), target - kept);
  }
  return filled_ >= length ? data : nullptr;
}

std::span<const std::byte> BufferedReader::view_some(std::uint64_t offset, std::uint64_t most) {
  if (most == 0 || view(offset, 1) == nullptr) return {};
  const auto skipped = static_cast<std::size_t>(offset - start_);
  const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(most, filled_ - skipped));
  hop_end_ = offset + n + policy_.hop_bytes;  // reading on is no hop
  return {data_ + skipped, n};
}

ParseError BufferedReader::describe_truncation(std::uint64_t offset) const {
  return {offset, "the file ends before its size of " + std::to_string(source_.size) +
                      " bytes: it was cut while it was read, or reading failed"};
}

}  // namespace penstock
