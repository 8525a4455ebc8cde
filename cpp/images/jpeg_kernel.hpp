// The parts of the decoder that are compiled once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::jpeg {

inline constexpr unsigned lookup_bits = 11;

// A Huffman table. An entry of `fast` is found by the next bits, and has one symbol with its value:
//   bits 0..5    bits of code and value together; 0: see `is_long`
//   bits 8..15   how far the coefficient lies from the one before; or `end_of_block`; or `is_long`
//   bits 16..31  the value; where `is_long`: symbol | length of the code << 8, or 0 if that is longer, too
struct SymbolTable {
  static constexpr unsigned end_of_block = 64, is_long = 128;

  std::uint32_t fast[std::size_t{1} << lookup_bits];
  // Of AC tables: all symbols that the next bits hold whole, up to the end of the block. Bits 0..5: their
  // bits; 8..15: how far they go, + `end_of_block` if they end it, or `is_long` if there is none.
  std::uint32_t several[std::size_t{1} << lookup_bits];
  std::uint32_t limits[17];  // of each length: the first 16 bits that are above its codes and shorter ones
  std::int32_t places[17];   // of each length: place of a symbol, less its code
  std::uint8_t symbols[256];
};

enum class Damage : std::uint8_t { none, impossible_code, past_the_block };

// The next bits of bytes in which nothing is stuffed: `bits` has `left` of them, the first at the top.
struct BitReader {
  const std::uint8_t* at = nullptr;
  std::uint64_t bits = 0;
  unsigned left = 0;
};

// An MCU has at most this many blocks, each of 64 symbols of at most 31 bits.
inline constexpr unsigned mcu_blocks_max = 6;
inline constexpr std::size_t mcu_bytes_max = mcu_blocks_max * 64 * 31 / 8;

struct EntropyState {
  BitReader reader;
  const std::uint8_t* stop = nullptr;  // an MCU does not begin if `reader.at` is beyond
  std::uint32_t dc[3]{};               // predictors, modulo 2**16 in what counts
  Damage damage = Damage::none;
};

struct McuLayout {
  unsigned blocks = 0;
  struct {
    const SymbolTable *dc, *ac;
    unsigned component;
    unsigned first, step;  // block of the first MCU in the buffer of blocks, and from MCU to MCU
  } block[mcu_blocks_max]{};
};

struct Unstuffed {
  std::size_t read = 0, written = 0;
  bool is_end = false;  // a marker, or the end of what can be read, comes next
};

inline constexpr std::size_t unstuff_slack = 64;  // bytes that may be written beyond what counts
inline constexpr std::size_t row_margin = 64;     // bytes before and behind a row of samples

// Memory of rows of samples has margins on both sides, which kernels may read and write.
struct KernelFunctions {
  // Copy bytes of in[0:limit], without the zeros behind 0xFF, up to a marker. `size` >= limit is the end
  // of what can be read.
  Unstuffed (*unstuff)(const std::uint8_t* in, std::size_t limit, std::size_t size, std::uint8_t* out);
  // Decode up to `count` MCUs to coefficients, where they are zero before: how many. Stops at damage
  // (that MCU does not count) and beyond `stop`. `last` is the place in zigzag order of a block's last
  // coefficient.
  std::size_t (*decode)(EntropyState& state, const McuLayout& layout, std::size_t count,
                        std::int16_t* blocks, std::uint8_t* last);
  // The same without coefficients.
  std::size_t (*skip)(EntropyState& state, const McuLayout& layout, std::size_t count);
  // Transform blocks to samples, side by side; writes zeros over their coefficients. Writes up to
  // 8 samples more than the blocks have.
  void (*transform)(std::int16_t* blocks, const std::uint8_t* last, std::size_t count,
                    const std::uint16_t* quantisers, std::uint8_t* out, std::size_t stride);
  // The same to samples of a reduced side: 4, 2 or 1.
  void (*transform_shrunken)(unsigned side, std::int16_t* blocks, const std::uint8_t* last,
                             std::size_t count, const std::uint16_t* quantisers, std::uint8_t* out,
                             std::size_t stride);
  // Twice as many samples from in[0:count], each 3/4 the nearer and 1/4 the farther one.
  void (*widen)(const std::uint8_t* in, std::size_t count, std::uint8_t* out);
  // The same of rows that are first mixed in the same way, rounded once.
  void (*widen_rows)(const std::uint8_t* nearer, const std::uint8_t* farther, std::size_t count,
                     std::uint8_t* out);
  void (*convert)(const std::uint8_t* y, const std::uint8_t* cb, const std::uint8_t* cr,
                  std::size_t count, std::uint8_t* rgb);
  void (*repeat)(const std::uint8_t* grey, std::size_t count, std::uint8_t* rgb);
};

extern const KernelFunctions portable_functions;
#if defined(__x86_64__)
extern const KernelFunctions avx2_functions;
#endif

// Integer constants of the inverse transform of Loeffler, Ligtenberg and Moschytz, times 2**13.
inline constexpr int c0_298 = 2446, c0_390 = 3196, c0_541 = 4433, c0_765 = 6270, c0_899 = 7373,
                     c1_175 = 9633, c1_501 = 12299, c1_847 = 15137, c1_961 = 16069, c2_053 = 16819,
                     c2_562 = 20995, c3_072 = 25172;

}  // namespace penstock::jpeg
