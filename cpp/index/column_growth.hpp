// Growth of the columns that a walk fills.
//
// Columns that double move into fresh pages each time, and the faults of these pages cost a quarter
// of the parsing. The number of rows in the part that was walked predicts the number in the file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace penstock {

class ColumnGrowth {
 public:
  explicit ColumnGrowth(std::uint64_t file_bytes) : file_bytes_(file_bytes) {}

  // Reserve memory for the rows to come; call with each row. The first `walked` bytes of the file
  // had `rows` rows. The columns are vectors or strings of any sizes: all grow by one factor.
  template <typename... Columns>
  void reserve(std::uint64_t walked, std::size_t rows, Columns&... columns) {
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
  std::size_t due_ = 1024;  // number of rows at which the columns grow next
};

}  // namespace penstock
