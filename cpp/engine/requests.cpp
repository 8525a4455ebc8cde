#include "engine/requests.hpp"

#include <stdexcept>
#include <string>

#include "ground/limits.hpp"

namespace penstock {
namespace {

[[noreturn]] void refuse(const std::string& column, std::size_t row, std::int64_t value,
                         const std::string& reason) {
  throw std::invalid_argument(column + "[" + std::to_string(row) + "] is " +
                              std::to_string(value) + ": " + reason);
}

constexpr auto span_max = static_cast<std::int64_t>(limits::run_bytes_max);

std::int64_t end(const Extent& extent) { return extent.offset + extent.length; }

std::vector<Extent> check_extents(const RequestColumns& columns,
                                  std::span<const std::span<std::byte>> buffers,
                                  std::size_t file_count) {
  const std::size_t count = columns.file.size();
  if (columns.offset.size() != count || columns.length.size() != count ||
      columns.buffer.size() != count || columns.target.size() != count) {
    throw std::invalid_argument("request columns differ in length");
  }
  std::vector<Extent> extents(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t offset = columns.offset[i];
    const std::int64_t length = columns.length[i];
    const std::int64_t target = columns.target[i];
    const std::uint32_t buffer = columns.buffer[i];
    if (columns.file[i] >= file_count) refuse("file", i, columns.file[i], "there is no such file");
    if (offset < 0) refuse("offset", i, offset, "it cannot be negative");
    if (length < 0) refuse("length", i, length, "it cannot be negative");
    if (length > INT64_MAX - offset) refuse("length", i, length, "the extent ends beyond 2^63");
    if (buffer >= buffers.size()) refuse("buffer", i, buffer, "there is no such buffer");
    const auto room = static_cast<std::int64_t>(buffers[buffer].size());
    if (target < 0 || target > room || length > room - target) {
      refuse("target", i, target, "the destination lies outside its buffer");
    }
    extents[i] = {offset, length, buffers[buffer].data() + target, columns.file[i]};
  }
  return extents;
}

std::vector<std::size_t> check_runs(std::span<const std::int64_t> runs,
                                    std::span<const Extent> extents) {
  const auto count = static_cast<std::int64_t>(extents.size());
  if (runs.empty() || runs.front() != 0 || runs.back() != count) {
    throw std::invalid_argument("runs must start at 0 and end at the number of extents (" +
                                std::to_string(count) + ")");
  }
  std::vector<std::size_t> result(runs.size());
  for (std::size_t j = 0; j + 1 < runs.size(); ++j) {
    if (runs[j + 1] <= runs[j] || runs[j + 1] > count) {
      refuse("runs", j + 1, runs[j + 1], "a run holds one extent or more");
    }
    const auto first = static_cast<std::size_t>(runs[j]);
    const auto last = static_cast<std::size_t>(runs[j + 1]);
    for (std::size_t i = first + 1; i < last; ++i) {
      if (extents[i].file != extents[i - 1].file) {
        refuse("file", i, extents[i].file, "a run is of one file");
      }
      if (extents[i].offset < end(extents[i - 1])) {
        refuse("offset", i, extents[i].offset, "a run's extents ascend without overlap");
      }
    }
    // A single long extent is no merged read: it is split at will.
    if (last - first > limits::run_extents_max) {
      refuse("runs", j + 1, runs[j + 1], "a run holds run_extents_max extents at most");
    }
    if (last - first > 1 && end(extents[last - 1]) - extents[first].offset > span_max) {
      refuse("runs", j + 1, runs[j + 1], "a run of several extents covers run_bytes_max at most");
    }
    result[j + 1] = last;
  }
  return result;
}

}  // namespace

PlacedRequests place_requests(const RequestColumns& columns, std::span<const std::span<std::byte>> buffers,
             std::size_t file_count) {
  PlacedRequests placed;
  placed.extents = check_extents(columns, buffers, file_count);
  placed.runs = check_runs(columns.runs, placed.extents);
  return placed;
}

}  // namespace penstock
