// Rows of tokens as a model takes them: inputs, labels and positions of the documents in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

inline constexpr std::int64_t ignored_label = -100;

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
