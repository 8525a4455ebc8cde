// Baseline JPEGs of random coefficients: any sampling, restart intervals, codes up to 16 bits. Says
// where each row of MCUs begins, which is what decoders must find.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "images/jpeg.hpp"

namespace penstock {

class JpegWriter {
 public:
  using Random = std::mt19937_64;

  std::uint32_t width = 16, height = 16;
  jpeg::Sampling sampling = jpeg::Sampling::s444;
  std::uint32_t restart_interval = 0;
  unsigned coefficients = 8;  // of a block, at most
  unsigned size_max = 6;      // bits of a coefficient
  bool has_long_codes = false;

  std::vector<jpeg::RowPosition> positions;  // of the picture written last
  std::size_t scan_offset = 0;

  // random: gives numbers of 64 bits when called.
  template <class Source>
  std::string write(Source& random) {
    positions.clear();
    file_ = write_header();
    scan_offset = file_.size();
    jpeg::Header shape;
    shape.width = width;
    shape.height = height;
    shape.sampling = sampling;
    const unsigned luma = shape.mcu_width() / 8 * (shape.mcu_height() / 8);
    const std::uint64_t all = std::uint64_t{shape.mcu_rows()} * shape.mcu_columns();
    dc_ = {};
    for (std::uint64_t mcu = 0; mcu < all; ++mcu) {
      if (restart_interval != 0 && mcu != 0 && mcu % restart_interval == 0) {
        pad();
        file_ += '\xff';
        file_ += static_cast<char>(0xD0 + (mcu / restart_interval - 1) % 8);
        dc_ = {};
      }
      if (mcu % shape.mcu_columns() == 0) note_position(shape.components());
      for (unsigned b = 0; b < luma + shape.components() - 1; ++b)
        write_block(b < luma ? 0 : b - luma + 1, random);
    }
    pad();
    return file_ + "\xff\xd9";
  }

 private:
  static std::string word(std::size_t value) {
    return {static_cast<char>(value >> 8), static_cast<char>(value & 0xFF)};
  }
  static std::string segment(unsigned marker, const std::string& content) {
    return std::string{'\xff', static_cast<char>(marker)} + word(content.size() + 2) + content;
  }

  // A flat code of all symbols, or one with codes of nearly every length.
  std::string make_table(unsigned which, const std::vector<unsigned>& symbols) {
    std::array<unsigned, 17> counts{};
    if (!has_long_codes) {
      counts[which < 16 ? 5 : 8] = static_cast<unsigned>(symbols.size());
    } else {
      std::size_t left = symbols.size();
      for (unsigned length = 2; length < 16 && left > 0; ++length, --left) counts[length] = 1;
      counts[16] = static_cast<unsigned>(left);
    }
    std::string table(1, static_cast<char>(which));
    for (unsigned length = 1; length <= 16; ++length) table += static_cast<char>(counts[length]);
    auto& codes = codes_[which >> 4];
    codes = {};
    unsigned code = 0;
    std::size_t symbol = 0;
    for (unsigned length = 1; length <= 16; ++length, code <<= 1)
      for (unsigned i = 0; i < counts[length]; ++i, ++code, ++symbol)
        codes[symbols[symbol]] = {code, length};
    for (const unsigned one : symbols) table += static_cast<char>(one);
    return segment(0xC4, table);
  }

  std::string write_header() {
    std::string head = "\xff\xd8";
    std::string quantisers(1, '\0');
    for (unsigned i = 0; i < 64; ++i) quantisers += static_cast<char>(1 + i / 4);
    head += segment(0xDB, quantisers);
    const unsigned count = sampling == jpeg::Sampling::grey ? 1 : 3;
    const unsigned luma = sampling == jpeg::Sampling::s420   ? 0x22
                          : sampling == jpeg::Sampling::s422 ? 0x21
                                                             : 0x11;
    std::string frame = "\x08" + word(height) + word(width) + static_cast<char>(count);
    std::string scan(1, static_cast<char>(count));
    for (unsigned i = 0; i < count; ++i) {
      frame += {static_cast<char>(i + 1), static_cast<char>(i == 0 ? luma : 0x11), '\0'};
      scan += {static_cast<char>(i + 1), '\0'};
    }
    head += segment(0xC0, frame);
    std::vector<unsigned> sizes, symbols;
    for (unsigned size = 0; size < 12; ++size) sizes.push_back(size);
    for (unsigned run = 0; run < 16; ++run)
      for (unsigned size = run == 0 || run == 15 ? 0 : 1; size <= 10; ++size)
        symbols.push_back(run << 4 | size);
    head += make_table(0x00, sizes) + make_table(0x10, symbols);
    if (restart_interval != 0) head += segment(0xDD, word(restart_interval));
    return head + segment(0xDA, scan + std::string{'\0', '\x3f', '\0'});
  }

  void put(unsigned value, unsigned length) {
    for (unsigned i = length; i-- > 0;) {
      byte_ = static_cast<std::uint8_t>(byte_ << 1 | (value >> i & 1));
      if (++bits_ < 8) continue;
      file_ += static_cast<char>(byte_);
      if (byte_ == 0xFF) file_ += '\0';
      bits_ = byte_ = 0;
    }
  }
  void pad() {
    while (bits_ != 0) put(1, 1);
  }
  void put_value(int value, unsigned size) {
    if (size != 0) put(static_cast<unsigned>(value < 0 ? value + (1 << size) - 1 : value), size);
  }
  static unsigned count_bits(int value) {
    unsigned size = 0;
    for (int rest = value < 0 ? -value : value; rest != 0; rest >>= 1) ++size;
    return size;
  }

  template <class Source>
  void write_block(unsigned component, Source& random) {
    const int level = static_cast<int>(random() % 401) - 200;
    const int difference = level - dc_[component];
    dc_[component] = level;
    const unsigned size = count_bits(difference);
    put(codes_[0][size].first, codes_[0][size].second);
    put_value(difference, size);
    unsigned place = 0;
    for (unsigned left = static_cast<unsigned>(random() % (coefficients + 1)); left > 0; --left) {
      unsigned run = static_cast<unsigned>(random() % 3 == 0 ? random() % 20 : random() % 2);
      if (place + run + 1 > 63) break;
      place += run + 1;
      for (; run > 15; run -= 16) put(codes_[1][0xF0].first, codes_[1][0xF0].second);
      const unsigned bits = 1 + static_cast<unsigned>(random() % size_max);
      const int high = 1 << (bits - 1);
      int value = high + static_cast<int>(random() % static_cast<unsigned>(high));
      if (random() % 2 == 0) value = -value;
      const auto [code, length] = codes_[1][run << 4 | bits];
      put(code, length);
      put_value(value, bits);
    }
    if (place < 63) put(codes_[1][0].first, codes_[1][0].second);
  }

  void note_position(unsigned components) {
    jpeg::RowPosition position;
    position.offset = static_cast<std::uint32_t>(file_.size());
    position.bit = static_cast<std::uint8_t>(bits_);
    for (unsigned i = 0; i < components; ++i) position.dc[i] = static_cast<std::int16_t>(dc_[i]);
    positions.push_back(position);
  }

  std::string file_;
  std::array<std::array<std::pair<unsigned, unsigned>, 256>, 2> codes_{};
  std::array<int, 3> dc_{};
  std::uint8_t byte_ = 0;
  unsigned bits_ = 0;
};

}  // namespace penstock
