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
  window,  // a window of fixed size: see WindowRule
};

enum class PadMode : std::uint8_t { constant, edge, reflect, symmetric };

// A window of the image, which was resized and padded before; torchvision's RandomCrop and CenterCrop.
struct WindowRule {
  bool is_drawn = false;  // its place; else it is the middle
  Size resized;           // of the image; {0, 0}: by `shorter` and `longest`, and if these are 0 its own
  std::uint32_t shorter = 0;
  std::uint32_t longest = 0;  // side that the longer one may have at most
  Size cut;  // of a window that is cut out of the image first and then resized to the target; or {0, 0}
  std::array<std::uint32_t, 4> padding{};  // left, top, right, bottom
  bool pads_small = false;  // an image that is smaller than the window; else it does not fit
  PadMode mode = PadMode::constant;
};

struct CropRule {
  Kind kind = Kind::whole;
  Size target;
  std::uint32_t shorter = 0;
  double area_low = 1, area_high = 1;    // parts of the image
  double ratio_low = 1, ratio_high = 1;  // width by height
  double flip_columns = 0, flip_rows = 0;  // probabilities
  bool columns_first = false, rows_first = false;  // images are flipped before they are cropped
  WindowRule window;
};

// Row and column of a resized image, or beside it.
struct Place {
  std::int64_t top = 0, left = 0;
};

// A crop of the image, resized to `resized`; of that the target begins at `first`.
struct Crop {
  std::uint32_t left = 0, top = 0, width = 0, height = 0;
  Size resized;
  Place first;
  bool flip_columns = false, flip_rows = false;
  bool fits = true;  // false if the image is smaller than the window
};

// Choose the crop of an image, which is not empty.
Crop choose_crop(const CropRule& rule, Size image, const Words& words) noexcept;

// Natural logarithm of a normal positive number, and its inverse between -700 and 700: of additions,
// multiplications and divisions alone, which all machines round alike.
double stable_log(double value) noexcept;
double stable_exp(double value) noexcept;

}  // namespace penstock::images
