// The members of a tar archive, and the consecutive ones that form a sample, by the rule of
// WebDataset: the key is the path up to the first dot of its last part, the rest, in lower case,
// is the extension.
//
// Formats: V7, ustar, GNU (long names, base-256 sizes) and pax (path and size, of the next member
// or of all). Members without verbatim bytes are refused: sparse members, links, parts of
// archives of several volumes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ground/parse_error.hpp"
#include "index/buffered_reader.hpp"

namespace penstock::tar {

struct Options {
  bool ignore_zeros = false;    // read on after the end of an archive: others may follow
  bool end_required = true;     // a file without an end mark is truncated
  bool duplicates = false;      // a key may come again later in the file, as another sample
  std::optional<std::string> label;  // extension whose bytes are wanted
};

struct Blob {
  std::string text;
  std::vector<std::int64_t> ends;

  void add(std::string_view name) {
    text += name;
    ends.push_back(static_cast<std::int64_t>(text.size()));
  }

  std::string_view operator[](std::size_t i) const {
    const auto start = i > 0 ? static_cast<std::size_t>(ends[i - 1]) : 0;
    return std::string_view(text).substr(start, static_cast<std::size_t>(ends[i]) - start);
  }
};

struct Walk {
  Blob keys;                               // of samples
  std::vector<std::int64_t> at;            // of samples: offset of the first member's header
  std::vector<std::int64_t> sample;        // of members, ascending
  std::vector<std::int32_t> extension;     // of members
  std::vector<std::int64_t> offset, length;  // of members
  Blob extensions;                         // in order of first appearance
  // With `label`, for each member of that extension:
  std::vector<std::int64_t> label_value;   // if it is an integer in ASCII
  std::vector<std::uint8_t> label_is_integer;
  Blob labels;                             // the bytes, without white space around them
  std::int64_t dropped = 0;                // regular files whose names have no key or no extension
  bool ended = false;      // by an end mark
  bool inherited = false;  // pax records of all members change those that follow
  std::optional<ParseError> parse_error;
  int read_error = 0;  // errno if reading failed
};

Walk walk(Source& source, const ReadPolicy& policy, const Options& options);

inline constexpr std::uint64_t label_bytes_max = 4096;

}  // namespace penstock::tar
