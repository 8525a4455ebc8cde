#include "index/buffered_reader.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "ground/limits.hpp"

namespace penstock {
namespace {

constexpr std::uint64_t hops_measured = 8;  // before the mean distance is believed
constexpr std::uint64_t page_bytes = 4096;

}  // namespace

BufferedReader::BufferedReader(Source& source, const ReadPolicy& policy)
    : source_(source),
      policy_(policy),
      capacity_(static_cast<std::size_t>(std::min<std::uint64_t>(
          std::max(policy.block_bytes, limits::header_bytes_max), source.size))) {
  buffer_ = std::make_unique_for_overwrite<std::byte[]>(capacity_);
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
  if (offset >= start_ && offset - start_ < filled_) {
    kept = filled_ - static_cast<std::size_t>(offset - start_);
    std::memmove(buffer_.get(), buffer_.get() + (offset - start_), kept);
  }
  start_ = offset;
  filled_ = kept;
  // Blocks end where pages do, so that most copies are of whole pages.
  const std::uint64_t page = std::min<std::uint64_t>(page_bytes, policy_.block_bytes);
  const std::size_t block = policy_.block_bytes - static_cast<std::size_t>(offset % page);
  const std::size_t wanted = hopping_ ? policy_.hop_bytes : block;
  const auto target = static_cast<std::size_t>(
      std::min<std::uint64_t>(std::max(wanted, length), source_.size - offset));
  if (target > kept) {
    const std::int64_t n = source_.read(offset + kept, {buffer_.get() + kept, target - kept});
    if (n < 0) {
      error_ = static_cast<int>(-n);
      return nullptr;
    }
    filled_ += std::min(static_cast<std::size_t>(n), target - kept);
  }
  return filled_ >= length ? buffer_.get() : nullptr;
}

std::span<const std::byte> BufferedReader::view_some(std::uint64_t offset, std::uint64_t most) {
  if (most == 0 || view(offset, 1) == nullptr) return {};
  const auto skipped = static_cast<std::size_t>(offset - start_);
  const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(most, filled_ - skipped));
  hop_end_ = offset + n + policy_.hop_bytes;  // reading on is no hop
  return {buffer_.get() + skipped, n};
}

ParseError BufferedReader::describe_truncation(std::uint64_t offset) const {
  return {offset, "the file ends before its size of " + std::to_string(source_.size) +
                      " bytes: it was cut while it was read, or reading failed"};
}

}  // namespace penstock
