// The order: a seeded bijection of [0, count), position -> sample, and its inverse.
//
// MixFeistel is a Feistel network on Z_a x {0,1}^k with a * 2^k just above count: additive rounds
// modulo a on the left half, xor rounds on the right. Values that land at or above count walk on
// until they are below it, which keeps the map a bijection. Up to table_count_max samples an exact
// Fisher-Yates table is drawn instead, since there the cipher would walk often.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace penstock {

inline constexpr std::size_t table_count_max = 4096;

// The parameters of a kernel: fewer than 64 bytes.
struct Cipher {
  // The state seeds the generator of the round keys. Throws std::invalid_argument if count is
  // outside 1 .. limits::order_count_max.
  Cipher(std::uint64_t count, std::uint64_t state);

  std::uint64_t count;
  std::uint32_t left_count;  // a, 16 .. 2^31
  std::uint32_t right_bits;  // k, 4 .. 31
  std::array<std::uint32_t, 8> keys;
};

// Maps `size` values, all below cipher.count; `in` and `out` are equal or do not overlap.
using Kernel = void (*)(const Cipher& cipher, const std::uint64_t* in, std::uint64_t* out,
                        std::size_t size);

// One instruction set's kernels. All levels give the same bits.
struct Level {
  std::string_view name;  // "scalar", "avx2", "avx512"
  Kernel forward;
  Kernel inverse;
};

// The levels that this processor runs, the fastest last; "scalar" is always the first.
std::span<const Level> levels() noexcept;

enum class Small { table, cipher };  // used for count <= table_count_max

// A permutation of [0, count). Immutable: any number of threads may share one. Allocates in the
// constructor only, and only if a table is used.
class Permutation {
 public:
  Permutation(std::uint64_t count, std::uint64_t state, Small small = Small::table,
              const Level& level = levels().back());

  // Position -> sample. `positions` and `samples` have one size and are the same memory or do not
  // overlap. Returns the index of the first position at or above count, or the size if there is
  // none; the values in `samples` after such a position are unspecified.
  std::size_t forward(std::span<const std::uint64_t> positions,
                      std::span<std::uint64_t> samples) const noexcept;

  // Sample -> position, as forward.
  std::size_t inverse(std::span<const std::uint64_t> samples,
                      std::span<std::uint64_t> positions) const noexcept;

  // The samples at positions start, start + 1, ... Returns as forward does.
  std::size_t run(std::uint64_t start, std::span<std::uint64_t> samples) const noexcept;

 private:
  struct Table {
    std::array<std::uint16_t, table_count_max> forward, inverse;
  };

  static std::unique_ptr<const Table> draw(std::uint64_t count, std::uint64_t state);

  Cipher cipher_;
  Level level_;
  std::unique_ptr<const Table> table_;
};

// [0, count) cut into groups of `span` (the last may be smaller), each permuted by a cipher with a
// key of its own; maps as Permutation does. Immutable, allocates nothing.
class Groups {
 public:
  Groups(std::uint64_t count, std::uint64_t span, std::uint64_t state,
         const Level& level = levels().back());

  std::size_t forward(std::span<const std::uint64_t> positions,
                      std::span<std::uint64_t> samples) const noexcept;
  std::size_t inverse(std::span<const std::uint64_t> samples,
                      std::span<std::uint64_t> positions) const noexcept;

 private:
  std::size_t map_groups(std::span<const std::uint64_t> in, std::span<std::uint64_t> out,
                     Kernel kernel) const noexcept;

  std::uint64_t count_, span_, state_;
  Level level_;
};

}  // namespace penstock
