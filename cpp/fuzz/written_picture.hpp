// Good files whose shape and coefficients the input chooses, so that damage meets decoders far behind the
// header. Small ones mostly: some are high, and some wide, with more blocks than are decoded at once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "fuzz/require.hpp"
#include "images/jpeg.hpp"
#include "tests/support/jpeg_writer.hpp"

namespace penstock {

// The input, from its first byte on; zeros behind it, or numbers that follow from a seed.
class InputBytes {
 public:
  InputBytes(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  std::uint8_t take() { return at_ < end_ ? *at_++ : std::uint8_t{0}; }
  std::uint32_t take_below(std::uint32_t count) { return take() * count / 256; }
  std::string_view take(std::size_t size) {
    size = std::min(size, static_cast<std::size_t>(end_ - at_));
    at_ += size;
    return contents(at_ - size, size);
  }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

  // For JpegWriter.
  std::uint64_t operator()() {
    if (at_ < end_ || seed_ == 0) return std::uint64_t{take()} * 0x9E3779B97F4A7C15 >> 33;
    seed_ = seed_ * 6364136223846793005 + 1442695040888963407;
    return seed_ >> 33;
  }
  void go_on(std::uint64_t seed) { seed_ = seed; }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
  std::uint64_t seed_ = 0;
};

// Whether FUZZ_SMALL is set: large pictures take some 30 times as long, and are soon half of a corpus.
inline bool has_small_pictures_only() {
  static const bool is_set = std::getenv("FUZZ_SMALL") != nullptr;
  return is_set;
}

// A file by the first four bytes; `input` has the coefficients.
inline std::string write_picture(JpegWriter& writer, InputBytes shape, InputBytes& input) {
  const std::uint8_t how = shape.take(), drawn = shape.take();
  const std::uint8_t size = has_small_pictures_only() ? 0 : drawn;
  writer.sampling = static_cast<jpeg::Sampling>(how & 3);
  writer.has_long_codes = (how & 4) != 0;
  writer.coefficients = (how & 8) != 0 ? 63 : 3;
  writer.size_max = (how & 16) != 0 ? 10 : 3;
  writer.restart_interval = std::array{0u, 0u, 1u, 4u}[how >> 5 & 3];
  writer.width = 1 + shape.take() % 20;
  writer.height = 1 + shape.take() % 20;
  if (size >= 240 && size < 252) writer.height += (size - 239) * 5u;
  if (size >= 252) {
    writer.width += (size - 251) * 160u;
    input.go_on(size + how);
  }
  return writer.write(input);
}

// Memory of exactly a file, so that a read beyond it is found.
class ExactBytes {
 public:
  explicit ExactBytes(std::string_view text) : size_(text.size()), bytes_(new std::byte[size_]) {
    if (size_ != 0) std::memcpy(bytes_.get(), text.data(), size_);
  }
  std::span<const std::byte> view() const { return {bytes_.get(), size_}; }

 private:
  std::size_t size_;
  std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace penstock
