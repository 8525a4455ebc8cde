#include "order/packing.hpp"

#include <array>
#include <bit>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>

namespace penstock {
namespace {

constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();
constexpr std::int64_t pieces_max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t tokens_max = std::int64_t{1} << 62;

// A set of spaces 0..size-1, in which the least member from a space on is found.
class SpaceSet {
 public:
  explicit SpaceSet(std::size_t size) {
    do {
      size = (size + 63) / 64;
      levels_[depth_++].resize(size);
    } while (size > 1);
  }

  void insert(std::size_t space) {
    for (unsigned level = 0; level < depth_; ++level, space >>= 6) {
      std::uint64_t& word = levels_[level][space >> 6];
      const bool was_empty = word == 0;
      word |= std::uint64_t{1} << (space & 63);
      if (!was_empty) return;
    }
  }

  void remove(std::size_t space) {
    for (unsigned level = 0; level < depth_; ++level, space >>= 6) {
      std::uint64_t& word = levels_[level][space >> 6];
      word &= ~(std::uint64_t{1} << (space & 63));
      if (word != 0) return;
    }
  }

  bool contains(std::size_t space) const { return (levels_[0][space >> 6] >> (space & 63)) & 1; }

  // Returns `none` if there is no such member.
  std::uint32_t find_from(std::size_t space) const {
    for (unsigned level = 0; level < depth_; ++level) {
      const std::size_t at = space >> 6;
      if (at >= levels_[level].size()) return none;
      const std::uint64_t rest = levels_[level][at] >> (space & 63);
      if (rest != 0) {
        space += static_cast<unsigned>(std::countr_zero(rest));
        while (level-- > 0)
          space = (space << 6) | static_cast<unsigned>(std::countr_zero(levels_[level][space]));
        return static_cast<std::uint32_t>(space);
      }
      space = at + 1;
    }
    return none;
  }

 private:
  std::array<std::vector<std::uint64_t>, 5> levels_;
  unsigned depth_ = 0;
};

// Places pieces in rows; tells `Sink` the row of each.
template <class Sink>
class Packer {
 public:
  Packer(const PackingRule& rule, Sink& sink)
      : rule_(rule),
        sink_(sink),
        spaces_(static_cast<std::size_t>(rule.row_length)),
        newest_(std::make_unique_for_overwrite<std::uint32_t[]>(
            static_cast<std::size_t>(rule.row_length))) {}

  void add(std::uint32_t document, std::int64_t tokens) {
    if (tokens <= rule_.row_length) {
      if (tokens > 0) place(document, 0, tokens);
      return;
    }
    if (!rule_.split) return place(document, 0, rule_.row_length);
    const std::int64_t step = rule_.row_length - 1;
    const std::int64_t whole = (tokens - 1) / step;
    if (whole > pieces_max - static_cast<std::int64_t>(older_.size()))
      throw std::invalid_argument("a window has more rows than 2^31 - 1");
    for (std::int64_t piece = 0; piece < whole; ++piece)
      place(document, piece * step, rule_.row_length);
    const std::int64_t rest = tokens - whole * step;
    if (rest > 1) place(document, whole * step, rest);
  }

  std::size_t rows() const { return older_.size(); }

 private:
  void place(std::uint32_t document, std::int64_t start, std::int64_t tokens) {
    std::int64_t taken = tokens;
    // A division costs as much as all else here.
    if (rule_.multiple > 1)
      taken = (tokens + rule_.multiple - 1) / rule_.multiple * rule_.multiple;
    std::uint32_t row;
    std::int64_t free = rule_.row_length;
    const std::uint32_t space =
        taken < rule_.row_length ? spaces_.find_from(static_cast<std::size_t>(taken)) : none;
    if (space == none) {
      row = static_cast<std::uint32_t>(older_.size());
      older_.push_back(none);
    } else {
      row = newest_[space];
      newest_[space] = older_[row];
      if (older_[row] == none) spaces_.remove(space);
      free = space;
    }
    free -= taken;
    if (free > 0) {
      const auto left = static_cast<std::size_t>(free);
      older_[row] = spaces_.contains(left) ? newest_[left] : none;
      newest_[left] = row;
      if (older_[row] == none) spaces_.insert(left);
    }
    sink_.put(row, document, start, tokens);
  }

  const PackingRule rule_;
  Sink& sink_;
  SpaceSet spaces_;
  std::unique_ptr<std::uint32_t[]> newest_;  // row by free space: valid where the set has it
  std::vector<std::uint32_t> older_;         // row: the one that came to its space before it
};

struct NoSink {
  void put(std::uint32_t, std::uint32_t, std::int64_t, std::int64_t) {}
};

struct Piece {
  std::uint32_t row, document;
  std::int64_t start, length;
};

struct PieceSink {
  std::vector<Piece> pieces;

  void put(std::uint32_t row, std::uint32_t document, std::int64_t start, std::int64_t length) {
    pieces.push_back({row, document, start, length});
  }
};

template <class Sink>
std::size_t pack(std::span<const std::int64_t> lengths, const PackingRule& rule, Sink& sink) {
  if (rule.row_length < 2 || rule.row_length > packing_length_max || rule.multiple < 1 ||
      rule.row_length % rule.multiple != 0)
    throw std::invalid_argument("a row has 2 to 2^24 tokens, and is a multiple of `multiple`");
  if (lengths.size() > static_cast<std::size_t>(pieces_max))
    throw std::invalid_argument("a window has more documents than 2^31 - 1");
  Packer<Sink> packer(rule, sink);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > tokens_max)
      throw std::invalid_argument("the length of a document is out of bounds");
    packer.add(static_cast<std::uint32_t>(i), lengths[i]);
  }
  return packer.rows();
}

}  // namespace

PackedRows pack_documents(std::span<const std::int64_t> lengths, const PackingRule& rule) {
  PieceSink sink;
  sink.pieces.reserve(lengths.size());
  const std::size_t rows = pack(lengths, rule, sink);
  PackedRows packed;
  packed.offsets.assign(rows + 1, 0);
  for (const Piece& piece : sink.pieces) ++packed.offsets[piece.row + 1];
  for (std::size_t row = 0; row < rows; ++row) packed.offsets[row + 1] += packed.offsets[row];
  packed.document.resize(sink.pieces.size());
  packed.start.resize(sink.pieces.size());
  packed.length.resize(sink.pieces.size());
  std::vector<std::int64_t> at(packed.offsets.begin(), packed.offsets.end() - 1);
  for (const Piece& piece : sink.pieces) {
    const auto target = static_cast<std::size_t>(at[piece.row]++);
    packed.document[target] = piece.document;
    packed.start[target] = piece.start;
    packed.length[target] = piece.length;
  }
  return packed;
}

std::size_t count_packed_rows(std::span<const std::int64_t> lengths, const PackingRule& rule) {
  NoSink sink;
  return pack(lengths, rule, sink);
}

}  // namespace penstock
