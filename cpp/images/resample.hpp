// Antialiased resizing of RGB pixels by a separable triangle filter, into any layout and type.
//
// Fixed point: the vertical pass sums 8-bit pixels under 16-bit weights to 1/256 levels, the
// horizontal pass sums these under 15-bit weights, and the only rounding to 8 bits is the last
// step; a side that is reduced more than 30 times is summed exactly, which is slower. 16 output rows
// are made at a time: the vertical pass of a block of columns is transposed at
// once, so that the horizontal pass works on 16 rows a vector. All kernels give the same bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace penstock::images {

enum class Layout : std::uint8_t { hwc, chw };
enum class Type : std::uint8_t { uint8, float16, bfloat16, float32 };

constexpr std::size_t size_of(Type type) noexcept {
  return type == Type::uint8 ? 1 : type == Type::float32 ? 4 : 2;
}

// For each of some neighbouring targets of a resized axis, the first source and the weights of it
// and the next ones. Sources count from `first_source`, the first that any target needs.
//
// A target weighs the sources within max(1, scale) of its centre by the triangle filter, and those
// alone that exist. Targets are [first_target, first_target + targets) of a resize from `sources`
// to `all_targets` pixels.
struct Taps {
  Taps() = default;
  // one: the sum of the weights of a target, 65,536 or 32,768.
  Taps(std::size_t sources, std::size_t all_targets, std::size_t first_target, std::size_t targets,
       std::uint32_t one);
  // The targets are made of `length` sources from `origin` on, neither of them a whole number.
  Taps(std::size_t sources, double origin, double length, std::size_t all_targets,
       std::size_t first_target, std::size_t targets, std::uint32_t one);

  std::size_t first_source = 0;
  std::size_t sources = 0;
  std::size_t width = 0;               // weights kept for each target; those past `count` are 0
  std::vector<std::uint32_t> first;    // relative to first_source
  std::vector<std::uint32_t> count;
  std::vector<std::uint16_t> weights;  // `width` for each target
};

// Taps of both axes: where the pixels come from.
struct Resize {
  Taps vertical;
  Taps horizontal;
};
Resize make_resize(std::size_t rows, std::size_t columns, std::size_t all_rows,
                   std::size_t all_columns, std::size_t first_row, std::size_t first_column,
                   std::size_t target_rows, std::size_t target_columns);

// Where the pixels go. Of floating-point types each value is level * scale + offset in float32,
// rounded to the type, of the level that uint8 has: all types show the same image.
struct Target {
  void* pixels = nullptr;
  Layout layout = Layout::hwc;
  Type type = Type::uint8;
  bool flip_columns = false;
  bool flip_rows = false;
  std::array<float, 3> scale{1, 1, 1};
  std::array<float, 3> offset{0, 0, 0};
};

// Pixels, 3 bytes each, of the sources that the taps need; rows are `stride` bytes apart.
struct Pixels {
  const std::uint8_t* first = nullptr;
  std::size_t stride = 0;
};

// Memory that calls of one thread use again.
struct ResampleScratch {
  std::vector<std::uint16_t> columns;  // of 16 rows each
  std::vector<std::uint8_t> results;
  std::vector<std::uint8_t> lines;
};

// kernel: 0 is portable, 1 AVX2; those that `count_kernels` counts.
void resample(const Pixels& source, const Resize& taps, const Target& target,
              ResampleScratch& scratch, unsigned kernel);
void resample(const Pixels& source, const Resize& taps, const Target& target,
              ResampleScratch& scratch);
unsigned count_kernels() noexcept;
std::string_view name_kernel(unsigned kernel) noexcept;

}  // namespace penstock::images
