#include "images/padding.hpp"

#include <algorithm>
#include <cstring>

#include "images/resample_kernel.hpp"

namespace penstock::images {
namespace {

// The pixel of [0, size) that stands for the one at `at`, which may be far beside them; -1 for none.
std::int64_t reflect(std::int64_t at, std::int64_t size, PadMode mode) noexcept {
  if (at >= 0 && at < size) return at;
  if (mode == PadMode::constant) return -1;
  if (mode == PadMode::edge || size == 1) return std::clamp<std::int64_t>(at, 0, size - 1);
  // A reflection repeats its first pixel if it is symmetric.
  const std::int64_t repeated = mode == PadMode::symmetric ? 1 : 0;
  const std::int64_t period = 2 * (size - 1 + repeated);
  const std::int64_t place = (at % period + period) % period;
  return place < size ? place : period - place - repeated;
}

// The 256 levels of each channel as values of the target's type, and then its fill.
template <class Value>
std::array<std::array<Value, 257>, 3> list_values(const Target& target,
                                                  const std::array<float, 3>& fill) {
  std::array<std::array<Value, 257>, 3> values;
  std::array<std::uint8_t, 256> levels;
  for (std::size_t level = 0; level < 256; ++level) levels[level] = static_cast<std::uint8_t>(level);
  for (std::size_t channel = 0; channel < 3; ++channel) {
    auto& row = values[channel];
    if constexpr (sizeof(Value) == 1) {
      std::ranges::copy(levels, row.begin());
      row[256] = static_cast<Value>(fill[channel]);
    } else {
      std::array<float, 24> scales, offsets;
      scales.fill(target.scale[channel]);
      offsets.fill(target.offset[channel]);
      portable_kernel.convert(levels.data(), 256, scales.data(), offsets.data(), target.type,
                              row.data());
      scales.fill(0);
      offsets.fill(fill[channel]);
      portable_kernel.convert(levels.data(), 1, scales.data(), offsets.data(), target.type, &row[256]);
    }
  }
  return values;
}

template <class Value>
void place(const std::uint8_t* pixels, const ShownAxis& rows, const ShownAxis& columns, Size size,
           const Target& target, const std::array<float, 3>& fill) {
  const auto values = list_values<Value>(target, fill);
  const bool is_planar = target.layout == Layout::chw;
  const std::size_t plane = std::size_t{size.height} * size.width;
  const auto find = [](const ShownAxis& axis, std::size_t at) {
    return axis.sources.empty() ? static_cast<std::int64_t>(at) : axis.sources[at];
  };
  auto* out = static_cast<std::uint8_t*>(target.pixels);
  for (std::size_t y = 0; y < size.height; ++y) {
    const std::int64_t row = find(rows, target.flip_rows ? size.height - 1 - y : y);
    for (std::size_t x = 0; x < size.width; ++x) {
      const std::int64_t column = find(columns, target.flip_columns ? size.width - 1 - x : x);
      const std::uint8_t* pixel = nullptr;
      if (row >= 0 && column >= 0)
        pixel = pixels + 3 * (static_cast<std::size_t>(row) * columns.count +
                              static_cast<std::size_t>(column));
      for (std::size_t channel = 0; channel < 3; ++channel) {
        const std::size_t at = y * size.width + x;
        const std::size_t to = is_planar ? channel * plane + at : 3 * at + channel;
        const Value& value = values[channel][pixel == nullptr ? 256 : pixel[channel]];
        std::memcpy(out + to * sizeof(Value), &value, sizeof(Value));
      }
    }
  }
}

}  // namespace

ShownAxis show_axis(std::int64_t first, std::uint32_t target, std::uint32_t resized, PadMode mode) {
  if (first >= 0 && first + target <= resized) return {static_cast<std::size_t>(first), target, {}};
  ShownAxis axis;
  axis.sources.resize(target);
  std::int64_t low = resized, high = -1;
  for (std::size_t i = 0; i < target; ++i) {
    const std::int64_t source = reflect(first + static_cast<std::int64_t>(i), resized, mode);
    axis.sources[i] = static_cast<std::int32_t>(source);
    if (source < 0) continue;
    low = std::min(low, source);
    high = std::max(high, source);
  }
  if (high < 0) low = high = 0;  // nothing but the fill: a pixel is made in vain
  for (std::int32_t& source : axis.sources)
    if (source >= 0) source -= static_cast<std::int32_t>(low);
  axis.first = static_cast<std::size_t>(low);
  axis.count = static_cast<std::size_t>(high - low + 1);
  return axis;
}

void place_pixels(const std::vector<std::uint8_t>& pixels, const ShownAxis& rows,
                  const ShownAxis& columns, Size size, const Target& target,
                  const std::array<float, 3>& fill) {
  const auto run = [&]<class Value>(Value) {
    place<Value>(pixels.data(), rows, columns, size, target, fill);
  };
  switch (size_of(target.type)) {
    case 1: return run(std::uint8_t{});
    case 2: return run(std::uint16_t{});
    default: return run(float{});
  }
}

}  // namespace penstock::images
