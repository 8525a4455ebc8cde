// Decoding row of blocks by row of blocks. What a row is made of:
//
//   bytes -> unstuffed bytes -> coefficients -> samples -> rows of RGB
//            a few KiB          some MCUs       two rows of MCUs of each component
//
// All of it stays in the processor's nearer caches, whatever the size of the picture.
#include <algorithm>
#include <cstring>
#include <optional>

#include "ground/processor.hpp"
#include "images/jpeg.hpp"
#include "images/jpeg_kernel.hpp"

namespace penstock::jpeg {
namespace {

constexpr std::size_t chunk_bytes = 8192;  // of the scan that are unstuffed at once
constexpr std::size_t mcus_at_once = 16;   // whose coefficients are transformed while in the cache
constexpr std::size_t padding = mcu_bytes_max + 16;  // that an MCU may read where the bytes end

// The table of a code that is known to be one.
void build_table(const HuffmanSpec& spec, bool is_dc, SymbolTable& table) {
  std::copy(spec.symbols.begin(), spec.symbols.end(), table.symbols);
  std::fill(std::begin(table.fast), std::end(table.fast), SymbolTable::is_long << 8);
  std::uint32_t code = 0;
  std::int32_t symbol = 0;
  table.limits[0] = 0;
  table.places[0] = 0;
  for (unsigned length = 1; length <= 16; ++length) {
    table.places[length] = symbol - static_cast<std::int32_t>(code);
    for (unsigned i = 0; i < spec.counts[length - 1]; ++i, ++code, ++symbol) {
      if (length > lookup_bits) continue;
      const unsigned free_bits = lookup_bits - length;
      const unsigned coded = spec.symbols[static_cast<std::size_t>(symbol)];
      const unsigned size = coded & 15, run = is_dc ? 0 : coded >> 4;
      const std::size_t first = std::size_t{code} << free_bits;
      for (std::size_t rest = 0; rest < std::size_t{1} << free_bits; ++rest) {
        std::uint32_t entry;
        if (!is_dc && size == 0 && run != 15) {
          entry = length | SymbolTable::end_of_block << 8;
        } else if (size > free_bits) {
          entry = SymbolTable::is_long << 8 | coded << 16 | length << 24;
        } else {
          std::int32_t value = 0;
          if (size != 0) {
            value = static_cast<std::int32_t>(rest >> (free_bits - size));
            if (value < 1 << (size - 1)) value -= (1 << size) - 1;
          }
          entry = (length + size) | (run + 1) << 8 | static_cast<std::uint32_t>(value) << 16;
        }
        table.fast[first + rest] = entry;
      }
    }
    table.limits[length] = code << (16 - length);
    code <<= 1;
  }
}

// Symbols that follow each other in the bits of one look-up.
void join_symbols(SymbolTable& table) {
  for (std::uint32_t index = 0; index < 1U << lookup_bits; ++index) {
    unsigned used = 0, distance = 0;
    for (;;) {
      const std::uint32_t entry = table.fast[(index << used) & ((1U << lookup_bits) - 1)];
      const unsigned length = entry & 63, step = entry >> 8 & 0xFF;
      // Bits behind those of the look-up are not known: they were taken as zeros.
      if (length == 0 || used + length > lookup_bits) break;
      if (step == SymbolTable::end_of_block) {
        used += length;
        distance += SymbolTable::end_of_block;
        break;
      }
      if (distance + step > 62) break;
      used += length;
      distance += step;
    }
    table.several[index] = used == 0 ? SymbolTable::is_long << 8 : used | distance << 8;
  }
}

// Tables that were built last: most files have the same ones.
class TableCache {
 public:
  const SymbolTable& find(const HuffmanSpec& spec, bool is_dc) {
    for (Entry& entry : entries_)
      if (entry.used != 0 && entry.is_dc == is_dc && entry.spec == spec) {
        entry.used = ++clock_;
        return *entry.table;
      }
    Entry& oldest = *std::ranges::min_element(entries_, {}, &Entry::used);
    if (!oldest.table) oldest.table = std::make_unique<SymbolTable>();
    oldest.spec = spec;
    oldest.is_dc = is_dc;
    oldest.used = ++clock_;
    build_table(spec, is_dc, *oldest.table);
    if (!is_dc) join_symbols(*oldest.table);
    return *oldest.table;
  }

 private:
  struct Entry {
    HuffmanSpec spec;
    bool is_dc = false;
    std::uint64_t used = 0;
    std::unique_ptr<SymbolTable> table;
  };
  std::array<Entry, 12> entries_;  // six are in use at once
  std::uint64_t clock_ = 0;
};

// The entropy-coded data of a stretch of the file: segments between restart markers, unstuffed as
// they are decoded.
class Scan {
 public:
  explicit Scan(const KernelFunctions& kernel) : kernel_(&kernel), buffer_(capacity) {}

  void open(Stretch stretch) {
    in_ = reinterpret_cast<const std::uint8_t*>(stretch.bytes.data());
    size_ = stretch.bytes.size();
    offset_ = stretch.offset;
  }

  EntropyState state;

  // Begin a segment at a byte of the file, of which the first bits belong to what is before.
  void begin(std::uint64_t offset, unsigned bit) {
    read_ = place_ = static_cast<std::size_t>(offset - offset_);
    base_ = place_bytes_ = 0;
    filled_ = 0;
    is_complete_ = false;
    state.reader = {buffer_.data(), 0, 0};
    state.damage = Damage::none;
    fill();
    if (bit != 0) {
      state.reader.bits = std::uint64_t{buffer_[0]} << (56 + bit);
      state.reader.left = 8 - bit;
      ++state.reader.at;
    }
  }

  // Unstuff more. What MCUs have used is dropped.
  void fill() {
    const std::size_t used = std::min(static_cast<std::size_t>(state.reader.at - buffer_.data()), filled_);
    std::memmove(buffer_.data(), buffer_.data() + used, filled_ - used);
    filled_ -= used;
    base_ += used;
    state.reader.at -= used;
    const std::size_t limit = std::min(size_ - read_, chunk_bytes);
    const Unstuffed done =
        kernel_->unstuff(in_ + read_, limit, size_ - read_, buffer_.data() + filled_);
    read_ += done.read;
    filled_ += done.written;
    is_complete_ = done.is_end || read_ == size_;
    if (is_complete_) std::memset(buffer_.data() + filled_, 0, padding);
    state.stop = buffer_.data() + filled_ - (is_complete_ ? 0 : std::min(filled_, padding));
  }

  // Decode `count` MCUs by `step(MCUs that are left)`: false at damage.
  template <class Step>
  bool advance(std::size_t count, const Step& step) {
    while (count > 0) {
      const std::size_t done = step(count);
      count -= done;
      if (state.damage != Damage::none) return false;
      if (is_complete_) {
        if (has_overrun()) return false;
        // Bytes read ahead of those used: MCUs near the end are decoded one at a time.
        if (count > 0 && state.reader.at > state.stop) {
          state.stop = state.reader.at;
          const std::size_t one = step(1);
          state.stop = buffer_.data() + filled_;
          count -= one;
          if (state.damage != Damage::none || has_overrun()) return false;
        }
      } else if (count > 0) {
        fill();
      }
    }
    return true;
  }

  bool has_overrun() const { return is_complete_ && used_bits() > (base_ + filled_) * 8; }

  // The segment has less than a byte left.
  bool is_used_up() {
    const std::uint64_t used_bytes = (used_bits() + 7) / 8;
    while (!is_complete_ && used_bytes >= base_ + filled_) fill();
    return is_complete_ && used_bytes == base_ + filled_;
  }

  // No byte comes behind the segment.
  bool is_at_end() const { return is_complete_ && read_ == size_; }

  // Of the next bit, in the file.
  std::uint64_t find_offset(unsigned& bit) {
    const std::uint64_t bits = used_bits();
    bit = bits % 8;
    move_place(bits / 8);
    return offset_ + place_;
  }

  // The byte behind the last one of the segment, in the file: a marker, or the end of what there is.
  std::uint64_t end_offset() const { return offset_ + read_; }

  // The code of the marker at an offset; the offset behind it then. 0 if there is none.
  unsigned take_marker(std::uint64_t& offset) const {
    std::size_t at = static_cast<std::size_t>(offset - offset_);
    if (at >= size_ || in_[at] != 0xFF) return 0;
    while (at < size_ && in_[at] == 0xFF) ++at;
    if (at >= size_) return 0;
    offset = offset_ + at + 1;
    return in_[at];
  }

  // Bytes from the next whole one to the next marker, or 0 if there is none.
  std::uint64_t count_stray() {
    unsigned bit = 0;
    std::uint64_t begin = find_offset(bit) - offset_;
    if (bit != 0) begin += begin + 1 < size_ && in_[begin] == 0xFF && in_[begin + 1] == 0 ? 2 : 1;
    for (std::size_t at = begin; at + 1 < size_; ++at)
      if (in_[at] == 0xFF && in_[at + 1] != 0) return at - begin;
    return 0;
  }

 private:
  static constexpr std::size_t capacity = chunk_bytes + 2 * padding + unstuff_slack;

  // Of the segment.
  std::uint64_t used_bits() const {
    return (base_ + static_cast<std::uint64_t>(state.reader.at - buffer_.data())) * 8 - state.reader.left;
  }

  // Find where the unstuffed byte `bytes` lies, from a byte before it.
  void move_place(std::uint64_t bytes) {
    while (place_bytes_ < bytes) {
      const std::size_t left = std::min<std::size_t>(bytes - place_bytes_, size_ - place_);
      if (left == 0) return;
      const void* found = std::memchr(in_ + place_, 0xFF, left);
      if (found == nullptr) {
        place_ += left;
        place_bytes_ += left;
        continue;
      }
      const std::size_t plain =
          static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - in_) - place_ + 1;
      place_ += plain;
      place_bytes_ += plain;
      if (place_ < size_ && in_[place_] == 0) ++place_;
    }
  }

  const KernelFunctions* kernel_;
  const std::uint8_t* in_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t offset_ = 0;
  std::vector<std::uint8_t> buffer_;
  std::size_t read_ = 0;    // bytes of the stretch that are unstuffed
  std::size_t filled_ = 0;  // bytes of the buffer
  std::uint64_t base_ = 0;  // unstuffed bytes of the segment before the buffer
  bool is_complete_ = false;
  std::size_t place_ = 0;  // in the stretch, of the unstuffed byte `place_bytes_` of the segment
  std::uint64_t place_bytes_ = 0;
};

// Samples of a component in two rows of MCUs, and margins.
struct Plane {
  std::vector<std::uint8_t> samples;
  std::size_t stride = 0, rows = 0;

  void resize(std::size_t width, std::size_t height) {
    stride = (width + 2 * row_margin + 63) / 64 * 64;
    rows = height;
    if (samples.size() < stride * rows) samples.resize(stride * rows);
  }
  std::uint8_t* row(std::size_t number) {
    return samples.data() + (number & (rows - 1)) * stride + row_margin;
  }
};

const KernelFunctions& choose_functions(Kernel kernel) {
#if defined(__x86_64__)
  if (kernel == Kernel::avx2) return avx2_functions;
#endif
  static_cast<void>(kernel);
  return portable_functions;
}

struct Range {
  std::uint32_t begin = 0, end = 0;
};

// Chroma is mixed with its neighbours, unless there are two samples at most.
bool is_mixed(const Header& header) { return (header.width + 1) / 2 > 2; }

// Samples of halved chroma that pixels [begin, end) are made of.
Range find_halves(std::uint32_t begin, std::uint32_t end, std::uint32_t size, bool mixed) {
  Range range{begin / 2, (end + 1) / 2};
  if (!mixed) return range;
  if (begin % 2 == 0 && range.begin > 0) --range.begin;
  if (end % 2 == 0 && range.end < (size + 1) / 2) ++range.end;
  return range;
}

Range find_columns(const Header& header, const Region& region) {
  const std::uint32_t end = region.left + region.width;
  if (region.shrink != 1) {  // chroma has as many samples as luma
    const std::uint32_t size = header.mcu_width() / region.shrink;
    return {region.left / size, (end + size - 1) / size};
  }
  if (header.mcu_width() == 8) return {region.left / 8, (end + 7) / 8};
  const Range halves = find_halves(region.left, end, header.width, is_mixed(header));
  return {halves.begin / 8, (halves.end + 7) / 8};
}

std::string name_damage(Damage damage) {
  return damage == Damage::impossible_code ? "the entropy-coded data has an impossible code"
                                           : "the entropy-coded data has a coefficient past 63";
}

}  // namespace

RowRange find_rows(const Header& header, const Region& region) {
  const std::uint32_t end = region.top + region.height;
  const std::uint32_t size = region.shrink == 1 ? 8 : header.mcu_height() / region.shrink;
  RowRange rows{region.top / size, (end + size - 1) / size};
  if (header.sampling == Sampling::s420 && region.shrink == 1) {
    const Range halves = find_halves(region.top, end, header.height, is_mixed(header));
    rows = {halves.begin / 8, (halves.end + 7) / 8};
  }
  // No position comes behind the lowest row: that its own fits is told by the end of the row above.
  if (rows.begin != 0 && rows.begin + 1 == header.mcu_rows()) --rows.begin;
  return rows;
}

std::span<const Kernel> list_kernels() {
  static constexpr Kernel kernels[] = {Kernel::portable, Kernel::avx2};
  static const std::size_t count = processor().avx2 && processor().bmi ? 2 : 1;
  return {kernels, count};
}

std::string_view name_of(Kernel kernel) noexcept {
  return kernel == Kernel::avx2 ? "avx2" : "portable";
}

struct Decoder::State {
  explicit State(Kernel which)
      : kernel(choose_functions(which)), scan(kernel), blocks((blocks_at_once + 1) * 64) {}

  static constexpr std::size_t blocks_at_once = mcus_at_once * mcu_blocks_max;

  const KernelFunctions& kernel;
  TableCache tables;
  Scan scan;
  std::vector<std::int16_t> blocks;  // zero between calls
  std::array<std::uint8_t, blocks_at_once + 1> last{};
  McuLayout layout;
  std::array<Plane, 3> planes;
  std::array<std::vector<std::uint8_t>, 2> wide;  // a row of chroma at the width of the picture
  std::uint64_t stray = 0;

  // Of the picture being decoded.
  const Header* header = nullptr;
  std::uint32_t interval_left = 0;
  unsigned shrink = 1;

  std::uint32_t mcu_width() const { return header->mcu_width() / shrink; }
  std::uint32_t mcu_height() const { return header->mcu_height() / shrink; }

  // Samples of a side of the blocks of a component.
  unsigned find_side(unsigned component) const {
    if (shrink == 1 || component == 0) return 8 / shrink;
    return mcu_width();
  }

  void open(const Header& of, Stretch stretch, unsigned shrink_by) {
    header = &of;
    shrink = shrink_by;
    stray = 0;
    scan.open(stretch);
    const bool is_wide = of.mcu_width() == 16, is_high = of.mcu_height() == 16;
    const unsigned luma = (is_wide ? 2U : 1U) * (is_high ? 2U : 1U);
    layout.blocks = luma + of.components() - 1;
    for (unsigned b = 0; b < layout.blocks; ++b) {
      const unsigned component = b < luma ? 0 : b - luma + 1;
      auto& block = layout.block[b];
      block.dc = &tables.find(of.dc[component], true);
      block.ac = &tables.find(of.ac[component], false);
      block.component = component;
      // Rows of blocks of a component follow each other, each of all MCUs that are decoded at once.
      block.step = component == 0 && is_wide ? 2 : 1;
      block.first = component == 0
                        ? b / 2 * 2 * static_cast<unsigned>(mcus_at_once) + b % 2
                        : (luma + component - 1) * static_cast<unsigned>(mcus_at_once);
    }
  }

  Outcome report(std::uint64_t offset, std::uint32_t row, std::string message) const {
    return {Status::broken, {offset, std::move(message)}, row};
  }

  Outcome report_damage(std::uint32_t row) {
    if (scan.state.damage != Damage::none && !scan.has_overrun()) {
      unsigned bit = 0;
      const std::uint64_t offset = scan.find_offset(bit);
      return report(offset, row, name_damage(scan.state.damage));
    }
    std::uint64_t behind = scan.end_offset();
    const unsigned marker = scan.take_marker(behind);
    return report(scan.end_offset(), row,
                  marker == 0 ? "the file ends inside the entropy-coded data"
                              : "marker " + std::to_string(marker) + " ends the entropy-coded data early");
  }

  // Begin at the first MCU of a row.
  void begin(std::uint32_t row, const RowPosition& position) {
    for (unsigned i = 0; i < 3; ++i)
      scan.state.dc[i] = static_cast<std::uint32_t>(std::int32_t{position.dc[i]});
    scan.begin(position.offset, position.bit);
    const std::uint32_t interval = header->restart_interval;
    interval_left = interval == 0 ? 0 : interval - static_cast<std::uint32_t>(
        std::uint64_t{row} * header->mcu_columns() % interval);
  }

  RowPosition find_position() {
    RowPosition position;
    unsigned bit = 0;
    position.offset = static_cast<std::uint32_t>(scan.find_offset(bit));
    position.bit = static_cast<std::uint8_t>(bit);
    for (unsigned i = 0; i < header->components(); ++i)
      position.dc[i] = static_cast<std::int16_t>(static_cast<std::uint16_t>(scan.state.dc[i]));
    return position;
  }

  // A restart marker comes next, the one before MCU number `mcu`.
  std::optional<Outcome> restart(std::uint32_t row, std::uint64_t mcu) {
    if (!scan.is_used_up() && !scan.is_at_end()) {
      unsigned bit = 0;
      const std::uint64_t offset = scan.find_offset(bit);
      return report(offset, row, "no restart marker comes at the end of a restart interval");
    }
    std::uint64_t offset = scan.end_offset();
    const unsigned marker = scan.take_marker(offset);
    const unsigned expected =
        0xD0 + static_cast<unsigned>((mcu / header->restart_interval - 1) % 8);
    if (marker != expected)
      return report(scan.end_offset(), row,
                    marker == 0 ? "the file ends inside the entropy-coded data"
                                : "marker " + std::to_string(marker) + " comes where " +
                                      std::to_string(expected) + " must restart the decoder");
    for (auto& predictor : scan.state.dc) predictor = 0;
    scan.begin(offset, 0);
    interval_left = header->restart_interval;
    return std::nullopt;
  }

  // Decode MCUs [column, column + count) of a row by `step(from column, at most)`, over restarts.
  template <class Step>
  std::optional<Outcome> advance(std::uint32_t row, std::uint32_t column, std::uint32_t count,
                                 const Step& step) {
    while (count > 0) {
      std::uint32_t some = count;
      if (header->restart_interval != 0) some = std::min(some, interval_left);
      std::size_t at = column;
      const bool is_whole = scan.advance(some, [&](std::size_t most) {
        const std::size_t done = step(at, most);
        at += done;
        return done;
      });
      if (!is_whole) return report_damage(row);
      column += some;
      count -= some;
      if (header->restart_interval == 0) continue;
      interval_left -= some;
      const bool is_last = column == header->mcu_columns() && row + 1 == header->mcu_rows();
      if (interval_left != 0 || is_last) continue;
      if (auto failed = restart(row, std::uint64_t{row} * header->mcu_columns() + column)) return failed;
    }
    return std::nullopt;
  }

  std::optional<Outcome> skip(std::uint32_t row, std::uint32_t column, std::uint32_t count) {
    return advance(row, column, count, [&](std::size_t, std::size_t most) {
      return kernel.skip(scan.state, layout, most);
    });
  }

  // Decode MCUs [columns.begin, columns.end) to samples.
  std::optional<Outcome> decode_samples(std::uint32_t row, Range columns) {
    for (std::uint32_t column = columns.begin; column < columns.end; column += mcus_at_once) {
      const std::uint32_t count =
          std::min<std::uint32_t>(columns.end - column, static_cast<std::uint32_t>(mcus_at_once));
      if (auto failed = advance(row, column, count, [&](std::size_t at, std::size_t most) {
            McuLayout shifted = layout;
            if (at != column)
              for (unsigned b = 0; b < layout.blocks; ++b)
                shifted.block[b].first += static_cast<unsigned>(at - column) * layout.block[b].step;
            return kernel.decode(scan.state, shifted, most, blocks.data(), last.data());
          })) {
        std::fill(blocks.begin(), blocks.end(), std::int16_t{0});
        return failed;
      }
      transform(row, column - columns.begin, count);
    }
    return std::nullopt;
  }

  void transform(std::uint32_t row, std::size_t column, std::size_t count) {
    for (unsigned b = 0; b < layout.blocks; ++b) {
      const auto& block = layout.block[b];
      if (block.component == 0 && block.step == 2 && b % 2 == 1) continue;  // done with its left neighbour
      Plane& plane = planes[block.component];
      const std::size_t block_row = block.component == 0 ? b / 2 : 0;
      const unsigned side = find_side(block.component);
      const std::size_t high = block.component == 0 ? mcu_height() : side;
      std::uint8_t* const out =
          plane.row(row % 2 * high + block_row * side) + column * block.step * side;
      std::int16_t* const first = blocks.data() + std::size_t{block.first} * 64;
      const std::uint8_t* const ends = last.data() + block.first;
      const std::uint16_t* const quantisers = header->quantisers[block.component].data();
      if (side == 8)
        kernel.transform(first, ends, count * block.step, quantisers, out, plane.stride);
      else
        kernel.transform_shrunken(side, first, ends, count * block.step, quantisers, out, plane.stride);
    }
  }

  // Rows [from, to) of the picture, of which all samples are there.
  void emit(const Region& region, Range columns, std::uint32_t from, std::uint32_t to, Output output) {
    const std::size_t shift = region.left - std::size_t{columns.begin} * mcu_width();
    for (std::uint32_t y = from; y < to; ++y) {
      std::uint8_t* const rgb = output.rgb + std::size_t{y - region.top} * output.stride_bytes;
      const std::uint8_t* const luma = planes[0].row(y) + shift;
      if (header->sampling == Sampling::grey) {
        kernel.repeat(luma, region.width, rgb);
        continue;
      }
      const std::uint8_t* chroma[2];
      for (unsigned i = 0; i < 2; ++i)
        chroma[i] = header->sampling == Sampling::s444 || shrink != 1
                        ? planes[i + 1].row(y) + shift
                        : widen(planes[i + 1], wide[i], y, shift, region.width);
      kernel.convert(luma, chroma[0], chroma[1], region.width, rgb);
    }
  }

  const std::uint8_t* widen(Plane& plane, std::vector<std::uint8_t>& out, std::uint32_t y,
                            std::size_t shift, std::size_t width) {
    const bool is_high = header->sampling == Sampling::s420;
    const std::size_t first = shift / 2, count = (shift + width + 1) / 2 - first;
    std::uint8_t* const wide_row = out.data() + row_margin;
    const std::uint32_t here = is_high ? y / 2 : y;
    const std::uint8_t* const nearer = plane.row(here) + first;
    if (!is_mixed(*header)) {
      for (std::size_t i = 0; i < count; ++i) wide_row[2 * i] = wide_row[2 * i + 1] = nearer[i];
    } else if (is_high) {
      const std::uint32_t rows = (header->height + 1) / 2;
      const std::uint32_t other = y % 2 != 0 ? std::min(here + 1, rows - 1) : here - (here != 0);
      kernel.widen_rows(nearer, plane.row(other) + first, count, wide_row);
    } else {
      kernel.widen(nearer, count, wide_row);
    }
    return wide_row + shift % 2;
  }

  // Repeat the outermost chroma samples of a row of MCUs, which have no neighbours.
  void extend(std::uint32_t row, Range columns) {
    const std::size_t width = (header->width + 1) / 2;
    for (unsigned i = 1; i < 3; ++i)
      for (std::size_t y = 0; y < 8; ++y) {
        std::uint8_t* const samples = planes[i].row(row % 2 * 8 + y);
        if (columns.begin == 0) samples[-1] = samples[0];
        if (columns.end == header->mcu_columns()) {
          const std::size_t end = width - std::size_t{columns.begin} * 8;
          samples[end] = samples[end - 1];
        }
      }
  }

  void take_memory(Range columns, std::size_t width) {
    const std::size_t count = columns.end - columns.begin;
    planes[0].resize(count * mcu_width(), 2 * mcu_height());
    if (header->sampling == Sampling::grey) return;
    for (unsigned i = 0; i < 2; ++i) {
      planes[i + 1].resize(count * find_side(1), 2 * find_side(1));
      if (header->sampling != Sampling::s444 && shrink == 1 && wide[i].size() < width + 4 * row_margin)
        wide[i].resize(width + 4 * row_margin);
    }
  }
};

Decoder::Decoder(Kernel kernel) : state_(std::make_unique<State>(kernel)) {}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

std::uint64_t Decoder::stray_bytes() const { return state_->stray; }

namespace {

Outcome refuse_index(std::uint64_t offset, std::uint32_t row, std::string message) {
  return {Status::index_misfit, {offset, std::move(message)}, row};
}

}  // namespace

Outcome Decoder::decode(const Header& header, Stretch stretch, const Region& region, Output output,
                        std::span<const RowPosition> positions, std::vector<RowPosition>* found) {
  State& s = *state_;
  const unsigned shrink = region.shrink;
  if (shrink != 1 && ((shrink != 2 && shrink != 4 && shrink != 8) || !can_shrink(header)))
    return s.report(0, no_row, "the picture cannot be shrunken so");
  const std::uint32_t width = (header.width + shrink - 1) / shrink;
  const std::uint32_t height = (header.height + shrink - 1) / shrink;
  if (region.width == 0 || region.height == 0 || region.left > width ||
      region.width > width - region.left || region.top > height ||
      region.height > height - region.top)
    return s.report(0, no_row, "the region does not lie in the picture");
  const bool is_indexed = !positions.empty();
  const RowRange rows = find_rows(header, region);
  const Range columns = find_columns(header, region);
  const std::uint64_t end = stretch.offset + stretch.bytes.size();
  RowPosition first;
  if (is_indexed) {
    if (positions.size() != header.mcu_rows())
      return refuse_index(0, no_row, "there are not as many positions as rows of blocks");
    RowPosition start;
    start.offset = static_cast<std::uint32_t>(header.scan_offset);
    if (header.scan_offset > 0xFFFFFFFF || !(positions[0] == start))
      return refuse_index(header.scan_offset, 0, "the first row of blocks begins elsewhere");
    first = positions[rows.begin];
    if (first.offset < header.scan_offset || first.offset < stretch.offset || first.offset >= end ||
        first.bit > 7)
      return refuse_index(first.offset, rows.begin, "a position does not lie in the scan");
  } else {
    if (header.scan_offset < stretch.offset || header.scan_offset > end)
      return s.report(end, 0, "the file ends inside the entropy-coded data");
    if (header.scan_offset > 0xFFFFFFFF)
      return s.report(header.scan_offset, no_row, "the header is longer than 4 GiB");
    first.offset = static_cast<std::uint32_t>(header.scan_offset);
  }
  s.open(header, stretch, shrink);
  s.take_memory(columns, region.width);
  s.begin(is_indexed ? rows.begin : 0, first);

  const std::uint32_t bottom = region.top + region.height;
  std::uint32_t emitted = region.top;
  for (std::uint32_t row = is_indexed ? rows.begin : 0; row < rows.end; ++row) {
    const bool is_needed = row >= rows.begin, is_last = row + 1 == rows.end;
    if (found != nullptr && !is_indexed) found->push_back(s.find_position());
    std::optional<Outcome> failed;
    if (!is_needed) {
      failed = s.skip(row, 0, header.mcu_columns());
    } else {
      if (is_indexed && row != rows.begin && columns.end != header.mcu_columns()) {
        const RowPosition& position = positions[row];
        if (position.offset < first.offset || position.offset >= end || position.bit > 7)
          return refuse_index(position.offset, row, "a position does not lie in the scan");
        s.begin(row, position);
      }
      failed = s.skip(row, 0, columns.begin);
      if (!failed) failed = s.decode_samples(row, columns);
      // To its end: without positions on the way to the next row, with them to see that they fit. The
      // first row and the last tell other bytes of the same size, in which any bit can begin a row.
      const bool is_check = row + 1 < header.mcu_rows() &&
                            (row == rows.begin || is_last || row + 2 == header.mcu_rows());
      const bool goes_on = is_indexed ? columns.end == header.mcu_columns() || is_check
                                      : !is_last || found != nullptr;
      if (!failed && goes_on)
        failed = s.skip(row, columns.end, header.mcu_columns() - columns.end);
      if (!failed && is_indexed && goes_on && row + 1 < header.mcu_rows()) {
        const RowPosition reached = s.find_position();
        if (!(reached == positions[row + 1]))
          return refuse_index(reached.offset, row, "a row of blocks does not end where the next begins");
      }
    }
    if (failed) {
      if (is_indexed) failed->status = Status::index_misfit;
      return *failed;
    }
    if (!is_needed) continue;
    const bool is_halved = header.mcu_width() == 16 && shrink == 1;
    if (is_halved) s.extend(row, columns);
    std::uint32_t complete = (row + 1) * s.mcu_height();
    if (row + 1 == header.mcu_rows()) complete = bottom;
    else if (is_halved && header.sampling == Sampling::s420 && is_mixed(header)) --complete;
    complete = std::min(complete, bottom);
    if (complete > emitted) {
      s.emit(region, columns, emitted, complete, output);
      emitted = complete;
    }
  }
  if (rows.end == header.mcu_rows()) {
    if (columns.end == header.mcu_columns() || (!is_indexed && found != nullptr)) s.stray = s.scan.count_stray();
  } else if (found != nullptr && !is_indexed) {
    found->push_back(s.find_position());
  }
  return {};
}

Outcome Decoder::find_positions(const Header& header, Stretch stretch,
                                std::vector<RowPosition>& positions) {
  State& s = *state_;
  const std::uint64_t end = stretch.offset + stretch.bytes.size();
  if (positions.empty()) {
    RowPosition first;
    if (header.scan_offset > 0xFFFFFFFF)
      return s.report(header.scan_offset, no_row, "the header is longer than 4 GiB");
    first.offset = static_cast<std::uint32_t>(header.scan_offset);
    positions.push_back(first);
  }
  const RowPosition from = positions.back();
  auto row = static_cast<std::uint32_t>(positions.size() - 1);
  if (positions.size() > header.mcu_rows() || from.offset < header.scan_offset || from.bit > 7)
    return refuse_index(from.offset, row, "a position does not lie in the scan");
  if (from.offset < stretch.offset || from.offset >= end)
    return s.report(end, row, "the file ends inside the entropy-coded data");
  s.open(header, stretch, 1);
  s.begin(row, from);
  for (; row < header.mcu_rows(); ++row) {
    if (auto failed = s.skip(row, 0, header.mcu_columns())) return *failed;
    if (row + 1 == header.mcu_rows()) break;
    unsigned bit = 0;
    if (s.scan.find_offset(bit) > 0xFFFFFFFF)
      return s.report(s.scan.find_offset(bit), row, "a row of blocks begins behind 4 GiB");
    positions.push_back(s.find_position());
  }
  s.stray = s.scan.count_stray();
  return {};
}

}  // namespace penstock::jpeg
