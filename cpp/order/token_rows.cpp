#include "order/token_rows.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <type_traits>

namespace penstock {
namespace {

template <class In>
In load(const std::byte* from) {
  In value;
  std::memcpy(&value, from, sizeof(In));
  return value;
}

// Copy tokens to another type; true if each has its value there.
template <class In, class Out>
bool convert(const std::byte* from, std::size_t count, Out* out) {
  if constexpr (sizeof(In) == sizeof(Out) && std::is_signed_v<In>) {
    std::memcpy(out, from, count * sizeof(Out));
    return true;
  } else if constexpr (sizeof(In) < sizeof(Out)) {
    for (std::size_t i = 0; i < count; ++i)
      out[i] = static_cast<Out>(load<In>(from + i * sizeof(In)));
    return true;
  } else {
    In lost = 0;  // bits of values that the output does not hold
    for (std::size_t i = 0; i < count; ++i) {
      const In value = load<In>(from + i * sizeof(In));
      out[i] = static_cast<Out>(value);
      lost |= static_cast<In>(static_cast<In>(out[i]) ^ value);
      if constexpr (std::is_unsigned_v<In>) lost |= static_cast<In>(out[i] < 0);
    }
    return lost == 0;
  }
}

template <class In, class Out>
std::size_t lay_out(const StoredTokens& tokens, const TokenPieces& pieces, Out pad, bool shifted,
                    std::span<Out> inputs, std::span<Out> labels, std::span<Out> positions) {
  constexpr Out ignored = static_cast<Out>(ignored_label);
  std::size_t bad = pieces.at.size(), place = 0;
  const auto fill = [&](std::size_t end) {
    std::fill(inputs.begin() + static_cast<std::ptrdiff_t>(place),
              inputs.begin() + static_cast<std::ptrdiff_t>(end), pad);
    std::fill(labels.begin() + static_cast<std::ptrdiff_t>(place),
              labels.begin() + static_cast<std::ptrdiff_t>(end), ignored);
    std::iota(positions.begin() + static_cast<std::ptrdiff_t>(place),
              positions.begin() + static_cast<std::ptrdiff_t>(end), Out{0});
    place = end;
  };
  for (std::size_t i = 0; i < pieces.at.size(); ++i) {
    fill(static_cast<std::size_t>(pieces.targets[i]));
    const auto count = static_cast<std::size_t>(pieces.lengths[i]);
    if (count == 0) continue;
    Out* const input = inputs.data() + place;
    Out* const label = labels.data() + place;
    const std::byte* from =
        tokens.bytes.data() + static_cast<std::size_t>(pieces.at[i]) * sizeof(In);
    if (!convert<In>(from, count, input) && bad == pieces.at.size()) bad = i;
    if (shifted) {
      std::memcpy(label, input + 1, (count - 1) * sizeof(Out));
      label[count - 1] = ignored;
    } else {
      label[0] = ignored;
      std::memcpy(label + 1, input + 1, (count - 1) * sizeof(Out));
    }
    std::iota(positions.data() + place, positions.data() + place + count, Out{0});
    place += count;
  }
  fill(inputs.size());
  return bad;
}

template <class Out>
void check(const StoredTokens& tokens, const TokenPieces& pieces, std::span<Out> inputs,
           std::span<Out> labels, std::span<Out> positions) {
  if (pieces.at.size() != pieces.lengths.size() || pieces.at.size() != pieces.targets.size() ||
      inputs.size() != labels.size() || inputs.size() != positions.size())
    throw std::out_of_range("the columns differ in size");
  const auto held = static_cast<std::int64_t>(tokens.bytes.size() / tokens.item_bytes);
  const auto room = static_cast<std::int64_t>(inputs.size());
  std::int64_t end = 0;
  for (std::size_t i = 0; i < pieces.at.size(); ++i) {
    const std::int64_t at = pieces.at[i], length = pieces.lengths[i], target = pieces.targets[i];
    if (at < 0 || length < 0 || length > held || at > held - length)
      throw std::out_of_range("a piece leaves the tokens");
    if (target < end || length > room || target > room - length)
      throw std::out_of_range("a piece leaves its place");
    end = target + length;
  }
}

}  // namespace

PlacedPieces place_pieces(std::span<const std::int64_t> offsets,
                          std::span<const std::int64_t> lengths, const BatchRows& rows) {
  if (rows.length < 1 || rows.multiple < 1 || rows.multiple > rows.length)
    throw std::out_of_range("a row has no such places");
  if (offsets.empty() || offsets.front() != 0 ||
      offsets.back() != static_cast<std::int64_t>(lengths.size()))
    throw std::out_of_range("rows do not have all pieces");
  const bool has_gaps = rows.multiple == 1;
  PlacedPieces placed;
  placed.targets.reserve(lengths.size());
  placed.source.reserve(2 * lengths.size() + 1);
  placed.starts.reserve(2 * lengths.size() + 2);
  std::int64_t place = 0, before = 0;  // the next place, and the tokens of sequences before it
  const auto add = [&](std::int64_t piece, std::int64_t tokens) {
    placed.starts.push_back(static_cast<std::int32_t>(before));
    placed.source.push_back(piece);
    before += tokens;
    if (has_gaps) placed.longest = std::max(placed.longest, tokens);
  };
  for (std::size_t row = 0; row + 1 < offsets.size(); ++row) {
    const std::int64_t end = place + rows.length;
    if (offsets[row + 1] < offsets[row] || offsets[row + 1] > offsets.back())
      throw std::out_of_range("rows do not follow each other");
    for (std::int64_t piece = offsets[row]; piece < offsets[row + 1]; ++piece) {
      const std::int64_t tokens = lengths[static_cast<std::size_t>(piece)];
      if (tokens < 0 || tokens > rows.length) throw std::out_of_range("a piece leaves its row");
      const std::int64_t room = (tokens + rows.multiple - 1) / rows.multiple * rows.multiple;
      if (!rows.flat && room > end - place) throw std::out_of_range("a piece leaves its row");
      placed.targets.push_back(place);
      if (!has_gaps || tokens > 0) add(piece, tokens);
      place += room;
    }
    if (rows.flat) continue;
    if (has_gaps && place < end) add(-1, end - place);
    place = end;
  }
  placed.starts.push_back(static_cast<std::int32_t>(before));
  placed.places = place;
  if (has_gaps) return placed;
  placed.rooms.assign(placed.targets.begin(), placed.targets.end());
  placed.rooms.push_back(static_cast<std::int32_t>(place));
  for (std::size_t i = 0; i < placed.targets.size(); ++i) {
    const std::int64_t next = i + 1 < placed.targets.size() ? placed.targets[i + 1] : place;
    placed.longest = std::max(placed.longest, next - placed.targets[i]);
  }
  return placed;
}

template <class Out>
std::size_t lay_out_tokens(const StoredTokens& tokens, const TokenPieces& pieces, Out pad,
                           bool shifted, std::span<Out> inputs, std::span<Out> labels,
                           std::span<Out> positions) {
  const auto lay = [&]<class In>(In) {
    check(tokens, pieces, inputs, labels, positions);
    return lay_out<In, Out>(tokens, pieces, pad, shifted, inputs, labels, positions);
  };
  switch (tokens.item_bytes) {
    case 1: return tokens.is_signed ? lay(std::int8_t{}) : lay(std::uint8_t{});
    case 2: return tokens.is_signed ? lay(std::int16_t{}) : lay(std::uint16_t{});
    case 4: return tokens.is_signed ? lay(std::int32_t{}) : lay(std::uint32_t{});
    case 8: return tokens.is_signed ? lay(std::int64_t{}) : lay(std::uint64_t{});
    default: throw std::out_of_range("a token has 1, 2, 4 or 8 bytes");
  }
}

template std::size_t lay_out_tokens<std::int32_t>(const StoredTokens&, const TokenPieces&,
                                                  std::int32_t, bool, std::span<std::int32_t>,
                                                  std::span<std::int32_t>,
                                                  std::span<std::int32_t>);
template std::size_t lay_out_tokens<std::int64_t>(const StoredTokens&, const TokenPieces&,
                                                  std::int64_t, bool, std::span<std::int64_t>,
                                                  std::span<std::int64_t>,
                                                  std::span<std::int64_t>);

}  // namespace penstock
