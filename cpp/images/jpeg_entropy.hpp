// Huffman decoding of blocks, for each instruction set: included by the files of kernels only.
//
// A symbol whose code and value fit in `lookup_bits` takes one look-up. One branch is left: taken at the
// end of a block, for longer symbols and for damage.
#pragma once

#include <bit>
#include <cstring>

#include "images/jpeg_kernel.hpp"

namespace penstock::jpeg {
namespace {

// Places of coefficients in a block, row by row, of their places in zigzag order. Beyond the block: 63.
alignas(64) constexpr std::uint8_t places[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

[[gnu::always_inline]] inline void refill(BitReader& reader) {
  std::uint64_t word;
  std::memcpy(&word, reader.at, 8);
  if constexpr (std::endian::native == std::endian::little) word = __builtin_bswap64(word);
  reader.bits |= word >> reader.left;
  reader.at += (63 - reader.left) >> 3;
  reader.left |= 56;
}

[[gnu::always_inline]] inline void consume(BitReader& reader, unsigned count) {
  reader.bits <<= count;
  reader.left -= count;
}

// The number that `size` bits stand for: those that begin with 0 are negative.
[[gnu::always_inline]] inline std::int32_t take_value(BitReader& reader, unsigned size) {
  if (size == 0) return 0;
  const auto raw = static_cast<std::int32_t>(reader.bits >> (64 - size));
  const bool is_negative = (reader.bits >> 63) == 0;
  consume(reader, size);
  return is_negative ? raw - (std::int32_t{1} << size) + 1 : raw;
}

// A symbol of any length that `entry` does not hold with its value: -1 if there is none.
inline int take_symbol(BitReader& reader, const SymbolTable& table, std::uint32_t entry) {
  if ((entry >> 16) != 0) {
    consume(reader, entry >> 24);
    return static_cast<int>(entry >> 16 & 0xFF);
  }
  const auto next = static_cast<std::uint32_t>(reader.bits >> 48);
  unsigned length = lookup_bits + 1;
  while (length <= 16 && next >= table.limits[length]) ++length;
  if (length > 16) return -1;
  consume(reader, length);
  return table.symbols[table.places[length] + static_cast<std::int32_t>(next >> (16 - length))];
}

[[gnu::always_inline]] inline std::uint32_t look_up(const BitReader& reader, const SymbolTable& table) {
  return table.fast[reader.bits >> (64 - lookup_bits)];
}

// Decode a block, to coefficients if `keep`: the place of the last one; 64 if it is damaged.
template <bool keep>
[[gnu::always_inline]] inline unsigned decode_block(BitReader& reader, const SymbolTable& dc,
                                                    const SymbolTable& ac, std::uint32_t& predictor,
                                                    std::int16_t* block, Damage& damage) {
  refill(reader);
  std::uint32_t entry = look_up(reader, dc);
  if ((entry & 63) != 0) [[likely]] {
    consume(reader, entry & 63);
    predictor += static_cast<std::uint32_t>(static_cast<std::int32_t>(entry) >> 16);
  } else {
    const int size = take_symbol(reader, dc, entry);
    if (size < 0) [[unlikely]] {
      damage = Damage::impossible_code;
      return 64;
    }
    predictor += static_cast<std::uint32_t>(take_value(reader, static_cast<unsigned>(size)));
    refill(reader);
  }
  if constexpr (keep) block[0] = static_cast<std::int16_t>(predictor);
  unsigned place = 0;
  for (;;) {
    // 56 bits less those of a DC symbol are enough for four.
    for (int i = 0; i < 4; ++i) {
      entry = keep ? look_up(reader, ac) : ac.several[reader.bits >> (64 - lookup_bits)];
      const unsigned next = place + (entry >> 8 & 0xFF);
      if (next >= 63) goto unusual;
      consume(reader, entry & 63);
      place = next;
      if constexpr (keep) block[places[place]] = static_cast<std::int16_t>(entry >> 16);
    }
    refill(reader);
    continue;
  unusual:
    if constexpr (!keep) {
      const unsigned distance = entry >> 8 & 0xFF;
      if ((distance & SymbolTable::end_of_block) != 0 &&
          place + distance - SymbolTable::end_of_block < 63) {
        consume(reader, entry & 63);
        return 0;
      }
      // One at a time towards the end of a block, behind which others begin.
      entry = look_up(reader, ac);
    }
    const unsigned step = entry >> 8 & 0xFF;
    if (step == SymbolTable::end_of_block) {
      consume(reader, entry & 63);
      return place;
    }
    if (step == SymbolTable::is_long) {
      refill(reader);
      const int symbol = take_symbol(reader, ac, entry);
      if (symbol < 0) [[unlikely]] {
        damage = Damage::impossible_code;
        return 64;
      }
      const unsigned size = static_cast<unsigned>(symbol) & 15, run = static_cast<unsigned>(symbol) >> 4;
      if (size == 0 && run != 15) return place;
      place += run + 1;
      const std::int32_t value = take_value(reader, size);
      if (place > 63) [[unlikely]] {
        damage = Damage::past_the_block;
        return 64;
      }
      if constexpr (keep) block[places[place]] = static_cast<std::int16_t>(value);
      if (place == 63) return 63;
      refill(reader);
      continue;
    }
    if (place + step > 63) [[unlikely]] {
      damage = Damage::past_the_block;
      return 64;
    }
    consume(reader, entry & 63);
    if (!keep && place + step < 63) {
      place += step;
      refill(reader);
      continue;
    }
    if constexpr (keep) block[63] = static_cast<std::int16_t>(entry >> 16);
    return 63;
  }
}

template <bool keep>
[[gnu::always_inline]] inline std::size_t decode_mcus(EntropyState& state, const McuLayout& layout,
                                                      std::size_t count, std::int16_t* blocks,
                                                      std::uint8_t* last) {
  BitReader reader = state.reader;
  std::size_t done = 0;
  for (; done < count && reader.at <= state.stop; ++done) {
    for (unsigned b = 0; b < layout.blocks; ++b) {
      const auto& block = layout.block[b];
      const std::size_t number = block.first + done * block.step;
      const unsigned end = decode_block<keep>(reader, *block.dc, *block.ac, state.dc[block.component],
                                              keep ? blocks + number * 64 : nullptr, state.damage);
      if (end > 63) [[unlikely]] {
        state.reader = reader;
        return done;
      }
      if constexpr (keep) last[number] = static_cast<std::uint8_t>(end);
    }
  }
  state.reader = reader;
  return done;
}

}  // namespace
}  // namespace penstock::jpeg
