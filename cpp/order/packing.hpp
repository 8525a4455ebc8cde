// Documents of a window in rows of fixed length: best fit, in the order of the window.
//
// A document takes its tokens, rounded up to `multiple`. It goes to the row with the least free
// space that holds it; of several, to the one that came to that space last; if there is none, to a
// new row. A longer document than a row gives whole rows first, whose neighbours share one token, so
// that each token but the first is once the target of the one before it. What is left of it, at
// least two tokens, is placed as a document. Nothing is sorted by size, and nothing depends on the
// processor.
//
// Rows by free space are lists, and a tree of bits over the spaces finds the least one that is
// large enough: 4 words are looked at for rows of up to 2^24 tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

inline constexpr std::int64_t packing_length_max = std::int64_t{1} << 24;

struct PackingRule {
  std::int64_t row_length;  // tokens of a row, 2..packing_length_max, a multiple of `multiple`
  bool split;               // longer documents: give several pieces; else they are cut
  std::int64_t multiple;    // 1..row_length
};

// Row r has the pieces [offsets[r], offsets[r + 1]), in the order in which they were placed.
struct PackedRows {
  std::vector<std::int64_t> offsets;
  std::vector<std::uint32_t> document;  // of each piece: its place in the window
  std::vector<std::int64_t> start;      // first token in the document
  std::vector<std::int64_t> length;     // tokens
};

// Both throw std::invalid_argument for a rule or lengths that are out of bounds, and for more than
// 2^31 - 1 documents or pieces. A document of no tokens is in no row.
PackedRows pack_documents(std::span<const std::int64_t> lengths, const PackingRule& rule);
std::size_t count_packed_rows(std::span<const std::int64_t> lengths, const PackingRule& rule);

}  // namespace penstock
