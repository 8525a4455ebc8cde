// Room for the columns that a walk fills.
//
// Columns that double move into fresh pages each time, and the faults of these cost a quarter of
// the parsing. How many rows a part of the file had says about how many it will have.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace penstock {

class Room {
 public:
  explicit Room(std::uint64_t file_bytes) : file_bytes_(file_bytes) {}

  // Call with each row: of the file, `walked` bytes had `rows`. The columns, vectors or strings,
  // may be of any sizes: all grow by one factor.
  template <typename... Columns>
  void make(std::uint64_t walked, std::size_t rows, Columns&... columns) {
    if (rows < due_) return;
    const double left = static_cast<double>(file_bytes_) / static_cast<double>(walked + 1);
    // A file whose records differ along it must not claim memory without end.
    const double factor = std::clamp(1.02 * left, 1.25, 64.0);
    const auto more = [factor](std::size_t n) {
      return static_cast<std::size_t>(factor * static_cast<double>(n));
    };
    (columns.reserve(more(columns.size())), ...);
    due_ = more(rows);
  }

 private:
  std::uint64_t file_bytes_;
  std::size_t due_ = 1024;  // rows at which there is to be more room
};

}  // namespace penstock
