#include "requests.hpp"

#include <stdexcept>
#include <string>

namespace penstock {
namespace {

[[noreturn]] void refuse(const std::string& column, std::size_t row, std::int64_t value,
                         const std::string& reason) {
  throw std::invalid_argument("request " + std::to_string(row) + ": " + column + " is " +
                              std::to_string(value) + ": " + reason);
}

}  // namespace

std::vector<Extent> place(const RequestColumns& columns,
                          std::span<const std::span<std::byte>> buffers, std::size_t file_count) {
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

std::vector<std::size_t> check_runs(const RequestColumns& columns) {
  const auto count = static_cast<std::int64_t>(columns.file.size());
  const auto runs = columns.runs;
  if (runs.empty() || runs.front() != 0 || runs.back() != count) {
    throw std::invalid_argument("runs must start at 0 and end at the number of extents (" +
                                std::to_string(count) + ")");
  }
  std::vector<std::size_t> result(runs.size());
  for (std::size_t j = 0; j + 1 < runs.size(); ++j) {
    if (runs[j + 1] <= runs[j] || runs[j + 1] > count) {
      throw std::invalid_argument("run " + std::to_string(j) + " holds no extent");
    }
    for (auto i = static_cast<std::size_t>(runs[j]) + 1; i < static_cast<std::size_t>(runs[j + 1]);
         ++i) {
      if (columns.file[i] != columns.file[i - 1]) refuse("file", i, columns.file[i], "a run is of one file");
      if (columns.offset[i] < columns.offset[i - 1] + columns.length[i - 1]) {
        refuse("offset", i, columns.offset[i], "a run's extents ascend without overlap");
      }
    }
    result[j + 1] = static_cast<std::size_t>(runs[j + 1]);
  }
  return result;
}

}  // namespace penstock
