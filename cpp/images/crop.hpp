// The part of an image that becomes an output: fixed, or drawn from the random numbers of a sample.
//
// A drawn crop follows torchvision's rule: up to ten tries of a part of the area, drawn uniformly, and a
// ratio of width to height, drawn uniformly in its logarithm; the first that fits lies at a place drawn
// uniformly. If none fits, it is the largest crop in the middle whose ratio is allowed.
//
// The mapping from random words to crops never changes (docs/images/crops.md has it). Try t takes the words
// 4t (area), 4t + 1 (ratio), 4t + 2 (top) and 4t + 3 (left); words 40 and 41 decide about flips. It is
// arithmetic of IEEE 754 without libm's logarithms, so that all machines draw the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace penstock::images {

inline constexpr std::size_t crop_tries = 10;
inline constexpr std::size_t crop_words = 4 * (crop_tries + 1);
using Words = std::array<std::uint64_t, crop_words>;

// The first words of Philox-4x64-10 under a key, from counter 1 on, as numpy's generator gives them.
Words draw_words(std::uint64_t key, std::uint64_t sample) noexcept;

struct Size {
  std::uint32_t height = 0;
  std::uint32_t width = 0;
};

enum class Kind : std::uint8_t {
  random,  // a drawn crop, resized to the target
  centre,  // the middle of the image, after its shorter side was resized to `shorter` (0: was not)
  whole,   // the image, resized to the target
};

struct CropRule {
  Kind kind = Kind::whole;
  Size target;
  std::uint32_t shorter = 0;
  double area_low = 1, area_high = 1;    // parts of the image
  double ratio_low = 1, ratio_high = 1;  // width by height
  double flip_columns = 0, flip_rows = 0;  // probabilities
};

// A crop of the image, resized to `resized`; of that the target begins at row and column `first`.
struct Crop {
  std::uint32_t left = 0, top = 0, width = 0, height = 0;
  Size resized;
  Size first;
  bool flip_columns = false, flip_rows = false;
};

// Choose the crop of an image, which is not empty.
Crop choose_crop(const CropRule& rule, Size image, const Words& words) noexcept;

// Natural logarithm of a normal positive number, and its inverse between -700 and 700: of additions,
// multiplications and divisions alone, which all machines round alike.
double stable_log(double value) noexcept;
double stable_exp(double value) noexcept;

}  // namespace penstock::images
