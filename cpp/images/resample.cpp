#include "images/resample.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "ground/processor.hpp"
#include "images/resample_kernel.hpp"

namespace penstock::images {
namespace {

// The sources of one target, and their weights as real numbers whose sum is `sum`.
struct Window {
  std::size_t first = 0;
  std::size_t count = 0;
  double sum = 0;
  std::vector<double> weights;
};

void weigh(std::size_t sources, double origin, double scale, std::size_t target, Window& window) {
  const double support = std::max(scale, 1.0), inverse = 1 / support;
  const double centre = origin + (static_cast<double>(target) + 0.5) * scale;
  auto first = static_cast<std::size_t>(std::max(0.0, centre - support + 0.5));
  const auto end = std::min(sources, static_cast<std::size_t>(centre + support + 0.5));
  const auto weight_at = [&](std::size_t source) {
    return 1 - std::abs(static_cast<double>(source) + 0.5 - centre) * inverse;
  };
  while (first + 1 < end && weight_at(first) <= 0) ++first;
  window.first = first;
  window.count = 0;
  window.sum = 0;
  for (std::size_t at = first; at < end; ++at) {
    const double weight = weight_at(at);
    if (weight <= 0 && at > first) break;
    window.weights[window.count++] = weight;
    window.sum += weight;
  }
}

// Weights as integers whose sum is `one`; a single one is the largest that its type holds.
void quantise(const Window& window, std::uint32_t one, std::uint16_t* out) {
  const double factor = one / window.sum;
  double before = 0;
  std::uint32_t rounded_before = 0;
  for (std::size_t i = 0; i < window.count; ++i) {
    before += window.weights[i];
    const auto rounded =
        i + 1 == window.count ? one : static_cast<std::uint32_t>(before * factor + 0.5);
    out[i] = static_cast<std::uint16_t>(std::min(rounded - rounded_before, one - 1));
    rounded_before = rounded;
  }
}

}  // namespace

Taps::Taps(std::size_t all_sources, std::size_t all_targets, std::size_t first_target,
           std::size_t targets, std::uint32_t one)
    : Taps(all_sources, 0, static_cast<double>(all_sources), all_targets, first_target, targets,
           one) {}

Taps::Taps(std::size_t all_sources, double origin, double length, std::size_t all_targets,
           std::size_t first_target, std::size_t targets, std::uint32_t one) {
  const double scale = length / static_cast<double>(all_targets);
  width = std::min(all_sources, static_cast<std::size_t>(2 * std::max(scale, 1.0)) + 3);
  Window window;
  window.weights.resize(width);
  first.resize(targets);
  count.resize(targets);
  weights.assign(targets * width, 0);
  std::size_t end = 0;
  for (std::size_t target = 0; target < targets; ++target) {
    weigh(all_sources, origin, scale, first_target + target, window);
    first[target] = static_cast<std::uint32_t>(window.first);
    count[target] = static_cast<std::uint32_t>(window.count);
    quantise(window, one, &weights[target * width]);
    end = std::max(end, window.first + window.count);
  }
  first_source = first.empty() ? 0 : first.front();
  sources = end - first_source;
  for (auto& source : first) source -= static_cast<std::uint32_t>(first_source);
}

Resize make_resize(std::size_t rows, std::size_t columns, std::size_t all_rows,
                   std::size_t all_columns, std::size_t first_row, std::size_t first_column,
                   std::size_t target_rows, std::size_t target_columns) {
  return {Taps(rows, all_rows, first_row, target_rows, 65536),
          Taps(columns, all_columns, first_column, target_columns, 32768)};
}

std::uint16_t to_bfloat(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

std::uint16_t to_half(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint32_t>(bits >> 16 & 0x8000);
  const std::uint32_t rest = bits & 0x7FFFFFFF;
  std::uint32_t half;
  if (rest >= 0x47800000) {  // 65,536 and above
    half = 0x7C00;
  } else if (rest < 0x38800000) {  // below the smallest normal number: units of 2^-24
    const float magnitude = std::bit_cast<float>(rest) + 0.5f;  // rounds to nearest even there
    half = std::bit_cast<std::uint32_t>(magnitude) - 0x3F000000;
  } else {
    half = (rest - 0x38000000 + 0xFFF + ((rest >> 13) & 1)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

namespace {

void sum_rows(const Pixels& source, const Taps& taps, std::size_t row, std::size_t rows,
              std::size_t row_bytes, std::uint16_t* columns) {
  const bool is_exact = taps.width > rounded_taps_max;
  for (std::size_t i = 0; i < group_rows; ++i) {
    const std::size_t target = row + std::min(i, rows - 1);
    const std::uint8_t* first = source.first + taps.first[target] * source.stride;
    const std::uint16_t* weights = &taps.weights[target * taps.width];
    const std::uint32_t count = taps.count[target];
    for (std::size_t byte = 0; byte < row_bytes; ++byte) {
      std::uint32_t sum = is_exact ? 128 : rounding_bias(count);
      for (std::uint32_t k = 0; k < count; ++k) {
        const std::uint32_t product = std::uint32_t{first[k * source.stride + byte]} * weights[k];
        sum += is_exact ? product : product >> 8;
      }
      if (is_exact) sum >>= 8;
      columns[byte * group_rows + i] =
          static_cast<std::uint16_t>(std::min(sum, std::uint32_t{0xFFFF}) ^ 0x8000);
    }
  }
}

void sum_columns(const std::uint16_t* columns, const Taps& taps, bool flip,
                 std::size_t column_step, std::size_t channel_step, std::uint8_t* results) {
  const std::size_t targets = taps.first.size();
  const bool is_exact = taps.width > rounded_taps_max;
  for (std::size_t target = 0; target < targets; ++target) {
    const std::uint16_t* weights = &taps.weights[target * taps.width];
    const std::size_t place = (flip ? targets - 1 - target : target) * column_step;
    for (std::size_t channel = 0; channel < 3; ++channel) {
      const std::uint16_t* at = columns + (taps.first[target] * 3 + channel) * group_rows;
      std::uint8_t* out = results + (place + channel * channel_step) * group_rows;
      for (std::size_t i = 0; i < group_rows; ++i) {
        std::int32_t sum = is_exact ? 0x4000 : 0;
        for (std::uint32_t k = 0; k < taps.count[target]; ++k) {
          const std::int32_t product =
              static_cast<std::int16_t>(at[k * 3 * group_rows + i]) * std::int32_t{weights[k]};
          sum += is_exact ? product : (product + 0x4000) >> 15;
        }
        if (is_exact) sum >>= 15;
        const auto level = static_cast<std::uint16_t>(static_cast<std::uint32_t>(sum) ^ 0x8000);
        out[i] = static_cast<std::uint8_t>(std::min(level + 128, 0xFFFF) >> 8);
      }
    }
  }
}

void transpose(const std::uint8_t* results, std::size_t count, std::uint8_t* lines,
               std::size_t stride) {
  for (std::size_t i = 0; i < group_rows; ++i)
    for (std::size_t k = 0; k < count; ++k) lines[i * stride + k] = results[k * group_rows + i];
}

void convert(const std::uint8_t* levels, std::size_t count, const float* scales,
             const float* offsets, Type type, void* out) {
  auto* bytes = static_cast<std::uint8_t*>(out);
  const std::size_t size = size_of(type);
  for (std::size_t k = 0; k < count; ++k) {
    // Two roundings, never one: the core is built without contraction to fused operations.
    const float product = static_cast<float>(levels[k]) * scales[k % pattern];
    const float value = product + offsets[k % pattern];
    if (type == Type::float32) {
      std::memcpy(bytes + k * size, &value, sizeof value);
      continue;
    }
    const std::uint16_t half = type == Type::float16 ? to_half(value) : to_bfloat(value);
    std::memcpy(bytes + k * size, &half, sizeof half);
  }
}

const ResampleKernel& find_kernel(unsigned kernel) noexcept {
#if defined(__x86_64__)
  if (kernel == 1) return avx2_kernel;
#endif
  (void)kernel;
  return portable_kernel;
}

constexpr std::size_t round_up(std::size_t size) noexcept { return (size + 15) / 16 * 16; }

}  // namespace

const ResampleKernel portable_kernel{sum_rows, sum_columns, transpose, convert};

unsigned count_kernels() noexcept { return processor().avx2 && processor().f16c ? 2 : 1; }

std::string_view name_kernel(unsigned kernel) noexcept { return kernel == 1 ? "avx2" : "portable"; }

void resample(const Pixels& source, const Resize& taps, const Target& target,
              ResampleScratch& scratch, unsigned kernel) {
  const ResampleKernel& steps = find_kernel(kernel);
  const std::size_t rows = taps.vertical.first.size(), columns = taps.horizontal.first.size();
  const std::size_t row_bytes = taps.horizontal.sources * 3;
  const std::size_t values = columns * 3, padded = round_up(values);
  const bool is_planar = target.layout == Layout::chw;
  scratch.columns.resize(round_up(row_bytes) * group_rows);
  scratch.results.resize(padded * group_rows);
  scratch.lines.resize(padded * group_rows);
  float scales[3][pattern], offsets[3][pattern];
  for (std::size_t plane = 0; plane < 3; ++plane)
    for (std::size_t k = 0; k < pattern; ++k) {
      scales[plane][k] = target.scale[is_planar ? plane : k % 3];
      offsets[plane][k] = target.offset[is_planar ? plane : k % 3];
    }
  const std::size_t size = size_of(target.type);
  auto* out = static_cast<std::uint8_t*>(target.pixels);
  for (std::size_t row = 0; row < rows; row += group_rows) {
    const std::size_t here = std::min(group_rows, rows - row);
    steps.sum_rows(source, taps.vertical, row, here, row_bytes, scratch.columns.data());
    steps.sum_columns(scratch.columns.data(), taps.horizontal, target.flip_columns,
                      is_planar ? 1 : 3, is_planar ? columns : 1, scratch.results.data());
    steps.transpose(scratch.results.data(), padded, scratch.lines.data(), padded);
    for (std::size_t i = 0; i < here; ++i) {
      const std::size_t place = target.flip_rows ? rows - 1 - row - i : row + i;
      const std::uint8_t* line = scratch.lines.data() + i * padded;
      for (std::size_t plane = 0; plane < (is_planar ? 3u : 1u); ++plane) {
        const std::size_t count = is_planar ? columns : values;
        std::uint8_t* to = out + (plane * rows * columns + place * count) * size;
        const std::uint8_t* from = line + plane * columns;
        if (target.type == Type::uint8)
          std::memcpy(to, from, count);
        else
          steps.convert(from, count, scales[plane], offsets[plane], target.type, to);
      }
    }
  }
}

void resample(const Pixels& source, const Resize& taps, const Target& target,
              ResampleScratch& scratch) {
  resample(source, taps, target, scratch, count_kernels() - 1);
}

}  // namespace penstock::images
