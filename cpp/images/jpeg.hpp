// Regions of baseline JPEGs as RGB, with the pixels that libjpeg-turbo's defaults give, bit for bit.
//
// Ours are: baseline or extended sequential Huffman coding of 8 bit, one interleaved scan, grey, 4:4:4,
// 4:2:2 or 4:2:0, restart markers or none. The rest of what is well-formed is `not_ours`: somebody else
// decodes it.
//
// Only the rows of blocks that a region needs are decoded to samples. Those above it are entropy-decoded,
// which takes most of the time, unless the positions of the rows are known: then decoding begins at the
// region's first row of blocks, and leaves each row at the region's right edge.
//
//     jpeg::Header header;
//     jpeg::Outcome outcome = jpeg::parse_header(file, pixels_max, header);
//     jpeg::Decoder decoder;                                       // one a thread; keeps its memory
//     if (outcome.is_ok()) outcome = decoder.decode(header, {0, file}, region, {rgb, stride});
//
// Nothing here throws but std::bad_alloc, and nothing knows Python: any thread may call it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ground/parse_error.hpp"

namespace penstock::jpeg {

enum class Status : std::uint8_t {
  ok,
  not_ours,      // well-formed perhaps, but not baseline, RGB, CMYK, ...; `error.message` says what
  broken,        // damaged: `error` has the byte and the reason, `block_row` the row of blocks
  too_large,     // more pixels than allowed; nothing was taken for them
  index_misfit,  // positions that do not fit these bytes: decode again without them, from the whole file
  too_small,     // an image that is smaller than its crop: `error.message` has its size
};

inline constexpr std::uint32_t no_row = ~std::uint32_t{0};  // the header's damage lies in no row

struct Outcome {
  Status status = Status::ok;
  ParseError error;                  // offset in the file, and message; empty if ok
  std::uint32_t block_row = no_row;  // MCU row at which the entropy-coded data is damaged

  bool is_ok() const { return status == Status::ok; }
};

enum class Sampling : std::uint8_t { grey, s444, s422, s420 };

struct HuffmanSpec {  // a table as DHT has it: number of codes of each length, and symbols in order
  std::array<std::uint8_t, 16> counts{};
  std::array<std::uint8_t, 256> symbols{};

  bool operator==(const HuffmanSpec&) const = default;
};

// What a file says before its entropy-coded data.
struct Header {
  std::uint32_t width = 0, height = 0;  // also of what is not ours, if its frame was seen; else 0
  Sampling sampling = Sampling::grey;
  std::uint32_t restart_interval = 0;  // MCUs, or 0
  std::uint64_t scan_offset = 0;       // of the first byte of entropy-coded data = bytes of the header
  std::uint64_t stray_bytes = 0;       // between segments, which belong to none

  std::uint32_t components() const { return sampling == Sampling::grey ? 1 : 3; }
  std::uint32_t mcu_width() const {
    return sampling == Sampling::s422 || sampling == Sampling::s420 ? 16 : 8;
  }
  std::uint32_t mcu_height() const { return sampling == Sampling::s420 ? 16 : 8; }
  std::uint32_t mcu_columns() const { return (width + mcu_width() - 1) / mcu_width(); }
  std::uint32_t mcu_rows() const { return (height + mcu_height() - 1) / mcu_height(); }

  std::uint32_t mcu_blocks() const {
    return components() - 1 + (mcu_width() / 8) * (mcu_height() / 8);
  }
  // The bytes of entropy-coded data that there are at least: two codes, of a bit or more, for a block.
  std::uint64_t scan_bytes_min() const {
    return std::uint64_t{mcu_columns()} * mcu_rows() * mcu_blocks() * 2 / 8;
  }

  std::array<std::array<std::uint16_t, 64>, 3> quantisers{};  // of each component, row by row
  std::array<HuffmanSpec, 3> dc{}, ac{};                      // of each component
};

// Parse the segments up to the first scan. `bytes` begin the file, and hold at least the whole header.
// A picture without width or height is broken; one of more than `pixels_max` pixels is too_large.
Outcome parse_header(std::span<const std::byte> bytes, std::uint64_t pixels_max, Header& header);

// Where the first MCU of an MCU row begins. As kept in files: 12 bytes, little-endian, no padding but
// the last byte, which is 0.
struct RowPosition {
  std::uint32_t offset = 0;             // in the file, of the byte that has the next bit
  std::array<std::int16_t, 3> dc{};     // predictors of the components
  std::uint8_t bit = 0;                 // bits of that byte that belong to what is before, 0 to 7
  std::uint8_t zero = 0;

  bool operator==(const RowPosition&) const = default;
};
static_assert(sizeof(RowPosition) == 12);

// In pixels of the picture, or of the picture with sides divided by `shrink`, rounded up: 2, 4 or 8,
// of pictures that `can_shrink`. Its pixels are those that libjpeg gives at that scale.
struct Region {
  std::uint32_t left = 0, top = 0, width = 0, height = 0;
  unsigned shrink = 1;
};

// Whether pictures can be shrunken while they are decoded: without halves in one direction alone.
inline bool can_shrink(const Header& header) { return header.sampling != Sampling::s422; }

struct RowRange {
  std::uint32_t begin = 0, end = 0;
};

// The MCU rows whose samples the region depends on. At 4:2:0 upsampling needs the nearest row of chroma
// above and below; the lowest row comes with the one above it. With positions, decoding them touches these bytes of the file:
//   [positions[begin].offset, end < mcu_rows ? positions[end].offset + 1 : size of the file)
RowRange find_rows(const Header& header, const Region& region);

// Consecutive bytes of the file.
struct Stretch {
  std::uint64_t offset = 0;  // of the first of them in the file
  std::span<const std::byte> bytes;
};

struct Output {
  std::uint8_t* rgb = nullptr;  // R, G, B of the region's first pixel; grey pictures give three alike
  std::size_t stride_bytes = 0;  // from row to row; at least 3 * region.width
};

enum class Kernel : std::uint8_t { portable, avx2 };  // the same pixels from each

// The kernels that this processor can run, portable first.
std::span<const Kernel> list_kernels();
std::string_view name_of(Kernel kernel) noexcept;

// Decoding with memory and tables that are kept between calls. Not for two threads at once.
class Decoder {
 public:
  explicit Decoder(Kernel kernel = list_kernels().back());
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  // Decode the region, which lies in the picture and is not empty, to `output`.
  //
  // Without positions, `scan` holds the file from header.scan_offset or before on; bytes that the region
  // does not need may be missing at the end. With positions (one for each MCU row) it need only hold what
  // find_rows says. `found`, if given without positions, gets those of the rows that were passed: 0 to
  // find_rows(...).end, so far as there are such rows.
  //
  // After any outcome but ok the output holds anything.
  Outcome decode(const Header& header, Stretch scan, const Region& region, Output output,
                 std::span<const RowPosition> positions = {},
                 std::vector<RowPosition>* found = nullptr);

  // Find the positions of all rows by entropy decoding alone, to the end: the whole scan is checked.
  // `positions` may hold those of the first rows, as `decode` found them; the rest is appended.
  // Also broken: a file of 4 GiB or more before its last row.
  Outcome find_positions(const Header& header, Stretch scan, std::vector<RowPosition>& positions);

  // Whole bytes between the last MCU and the next marker, when the last call decoded to the end.
  std::uint64_t stray_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::jpeg
