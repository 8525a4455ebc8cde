// Rows of tokens as a model takes them: inputs, labels and positions of the documents in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

inline constexpr std::int64_t ignored_label = -100;

// Rows of a batch: `length` places each, or the pieces of all rows end to end (`flat`). The room of a
// piece is its tokens, rounded up to `multiple`.
struct BatchRows {
  std::int64_t length, multiple;
  bool flat;
};

// The places of a batch, and its sequences: pieces, and between them gaps, which count as sequences.
// With a multiple of 2 or more there are no gaps: what is free belongs to the piece before.
struct PlacedPieces {
  std::vector<std::int64_t> targets;  // of each piece: its first place
  std::int64_t places = 0;            // of the batch
  std::vector<std::int32_t> starts;   // tokens before each sequence, and the end
  std::vector<std::int32_t> rooms;    // with a multiple: the first place of each sequence, and the end
  std::int64_t longest = 0;           // places of the longest sequence
  std::vector<std::int64_t> source;   // of each sequence: its piece, or -1
};

// Row r has the pieces [offsets[r], offsets[r + 1]), of `lengths` tokens. `starts` and `rooms` are of
// use if `places` is less than 2^31. Throws std::out_of_range for pieces that do not fit into rows.
PlacedPieces place_pieces(std::span<const std::int64_t> offsets,
                          std::span<const std::int64_t> lengths, const BatchRows& rows);

// Tokens as they were read.
struct StoredTokens {
  std::span<const std::byte> bytes;
  unsigned item_bytes;  // 1, 2, 4 or 8
  bool is_signed;
};

// Piece i is `lengths[i]` tokens from the token `at[i]` on; they go to the places from `targets[i]`
// on. Targets ascend, and pieces do not overlap there.
struct TokenPieces {
  std::span<const std::int64_t> at, lengths, targets;
};

// Write all places of the three outputs, which have one size. Places between pieces get `pad`, the
// ignored label, and positions that count from the place after the piece. A piece's positions count
// from 0. Labels are the tokens themselves, the first of a piece ignored; or, if `shifted`, the
// token after each, the last of a piece ignored.
//
// Returns the piece with the first token that the output's type does not hold, or the number of
// pieces. Throws std::out_of_range, with nothing written, if a piece leaves the tokens or the output.
template <class Out>
std::size_t lay_out_tokens(const StoredTokens& tokens, const TokenPieces& pieces, Out pad,
                           bool shifted, std::span<Out> inputs, std::span<Out> labels,
                           std::span<Out> positions);

}  // namespace penstock
