// Boxes of MP4 and QuickTime files: the header of a film, without its pictures.
//
// A file is boxes of a size and a type, some of which hold boxes. ISO/IEC 14496-12 describes them.
// Boxes here are in memory. A flaw is thrown as a `ParseError`, which `mp4::walk` catches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ground/big_endian.hpp"
#include "ground/parse_error.hpp"

namespace penstock::mp4 {

using Kind = std::uint32_t;  // of a box: four characters

consteval Kind kind_of(const char (&name)[5]) {
  Kind kind = 0;
  for (int i = 0; i < 4; ++i) kind = kind << 8 | static_cast<unsigned char>(name[i]);
  return kind;
}

std::string quote(Kind kind);              // 'moov'
std::string with_commas(std::uint64_t number);   // 1,234,567
std::string with_commas(std::int64_t number);

// A box: its type, the byte of the file where it starts, and its content.
struct Box {
  Kind kind = 0;
  std::uint64_t start = 0;
  std::uint64_t body = 0;  // the byte of the file where the content starts
  std::span<const std::byte> bytes;

  std::uint8_t u8(std::size_t at) const { return std::to_integer<std::uint8_t>(*row(at, 1)); }
  std::uint32_t u32(std::size_t at) const { return big_u32_at(row(at, 4)); }
  std::uint64_t u64(std::size_t at) const { return big_u64_at(row(at, 8)); }
  std::int32_t i32(std::size_t at) const { return static_cast<std::int32_t>(u32(at)); }

  // The table of `count` rows of these bytes from a byte of the content on.
  const std::byte* table(std::size_t at, std::uint64_t count, std::size_t row_bytes) const;

  // The error for a box that contradicts itself or others.
  ParseError flaw(const std::string& what) const;

 private:
  const std::byte* row(std::size_t at, std::size_t length) const {
    if (at + length > bytes.size()) throw flaw(with_commas(std::uint64_t{bytes.size()}) + " bytes, too few");
    return bytes.data() + at;
  }
};

// Number of the boxes of a file, which is bounded.
struct BoxCount {
  void add(std::uint64_t offset);
  std::uint32_t count = 0;
};

// The head of a box: its type, its bytes, and those of the whole box.
struct Head {
  Kind kind = 0;
  std::uint64_t head_bytes = 0, size = 0;
};

inline constexpr std::uint64_t head_bytes_min = 8, head_bytes_max = 16;

// The head of a box at a byte of the file, of which `left` bytes are left for it; `bytes` are
// `head_bytes_max` of them, or all.
Head parse_head(const std::byte* bytes, std::uint64_t offset, std::uint64_t left);

// The boxes in some bytes, one behind the other.
class Boxes {
 public:
  Boxes(std::span<const std::byte> bytes, std::uint64_t offset, BoxCount& count)
      : bytes_(bytes), offset_(offset), count_(count) {}
  std::optional<Box> next();

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t offset_;
  BoxCount& count_;
};

// The boxes below one box.
struct Tree {
  Box box;
  std::vector<Box> leaves;    // those without boxes that are read, of each type the first
  std::vector<Tree> several;  // those that may repeat (tracks, runs of frames), with what they hold

  const Box* find(Kind kind) const;
  // Of a track that needs it: the error names `owner`.
  const Box& take(Kind kind, const Box& owner) const;
};

// List the boxes below one, and below those that hold boxes.
Tree list_below(const Box& box, BoxCount& count);

}  // namespace penstock::mp4
