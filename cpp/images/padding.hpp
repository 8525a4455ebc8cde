// Pixels beside an image: a target that a resized image fills in part.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "images/crop.hpp"
#include "images/resample.hpp"

namespace penstock::images {

// One axis of a target: which of the resized pixels [first, first + count) it shows, and where.
struct ShownAxis {
  std::size_t first = 0;
  std::size_t count = 0;
  // For each row or column of the target one of these pixels, or -1 for the fill; empty if they are
  // the target, as they are.
  std::vector<std::int32_t> sources;
};

// The axis of a target that begins at `first` of `resized` pixels, or before them.
ShownAxis show_axis(std::int64_t first, std::uint32_t target, std::uint32_t resized, PadMode mode);

// Make a target of the pixels that it shows, three levels each. `fill`: values of the target's type.
void place_pixels(const std::vector<std::uint8_t>& pixels, const ShownAxis& rows,
                  const ShownAxis& columns, Size size, const Target& target,
                  const std::array<float, 3>& fill);

}  // namespace penstock::images
