// The lines of a JSONL file: one extent a line, without its end. The content is not parsed.
//
// No newline occurs inside a JSON string, so that a line is found by its newline alone. A line ends
// with LF or CR LF, the last one also with the file. Lines of blanks only, and a UTF-8 byte order
// mark at the start of the file, are in no extent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ground/parse_error.hpp"
#include "index/buffered_reader.hpp"

namespace penstock::jsonl {

struct Walk {
  std::vector<std::int64_t> offset, length;  // of each line that is not blank
  std::optional<ParseError> parse_error;
  int read_error = 0;  // errno if reading failed
};

// Memory besides the result is one block, however long a line is.
Walk walk(Source& source, const ReadPolicy& policy);

// Write the places of all newlines in `size` bytes to `out`, which has room for size + 1 places.
// Returns their number.
using FindNewlines = std::size_t (*)(const std::byte* bytes, std::size_t size, std::uint32_t* out);

struct NewlineFinder {
  std::string_view name;
  FindNewlines find;
};

// The implementations that this processor runs, the fastest first. All give the same places.
std::vector<NewlineFinder> list_newline_finders();

}  // namespace penstock::jsonl
