// Resizing: kernels against each other and against exact arithmetic, layouts, types, mirrors.
#include "images/resample.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "images/resample_kernel.hpp"
#include "tests/support/check.hpp"

using namespace penstock::images;

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes paint(std::size_t rows, std::size_t columns, std::uint64_t state) {
  Bytes pixels(rows * columns * 3);
  for (auto& value : pixels) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<std::uint8_t>(state >> 56);
  }
  return pixels;
}

struct Sizes {
  std::size_t rows, columns, target_rows, target_columns;
};
const Sizes all_sizes[] = {{1, 1, 1, 1},   {1, 1, 9, 5},     {37, 53, 16, 16}, {37, 53, 37, 53},
                           {5, 3, 2, 1},   {300, 11, 17, 4}, {9, 200, 4, 33},  {64, 64, 100, 90},
                           {450, 700, 3, 2}};

Bytes run(const Bytes& pixels, const Sizes& sizes, Target target, unsigned kernel) {
  const Resize resize = make_resize(sizes.rows, sizes.columns, sizes.target_rows,
                                    sizes.target_columns, 0, 0, sizes.target_rows,
                                    sizes.target_columns);
  Bytes out(sizes.target_rows * sizes.target_columns * 3 * size_of(target.type));
  target.pixels = out.data();
  ResampleScratch scratch;
  resample({pixels.data(), sizes.columns * 3}, resize, target, scratch, kernel);
  return out;
}

// All kernels give the same bits, in each layout, type and direction.
void test_kernels_agree() {
  for (const auto& sizes : all_sizes) {
    const Bytes pixels = paint(sizes.rows, sizes.columns, sizes.rows);
    for (const auto layout : {Layout::hwc, Layout::chw})
      for (const auto type : {Type::uint8, Type::float16, Type::bfloat16, Type::float32})
        for (int flips = 0; flips < 4; ++flips) {
          Target target;
          target.layout = layout;
          target.type = type;
          target.flip_columns = flips & 1;
          target.flip_rows = flips & 2;
          target.scale = {0.017f, 1e-7f, 300.0f};
          target.offset = {-2.1f, 0.0f, 1.0f};
          const Bytes expected = run(pixels, sizes, target, 0);
          for (unsigned kernel = 1; kernel < count_kernels(); ++kernel)
            CHECK(run(pixels, sizes, target, kernel) == expected);
        }
  }
}

std::vector<double> weigh(std::size_t sources, std::size_t targets, std::size_t target) {
  const double scale = static_cast<double>(sources) / static_cast<double>(targets);
  const double support = std::max(1.0, scale), centre = (static_cast<double>(target) + .5) * scale;
  std::vector<double> weights(sources);
  double sum = 0;
  for (std::size_t i = 0; i < sources; ++i) {
    weights[i] = std::max(0.0, 1 - std::abs(static_cast<double>(i) + .5 - centre) / support);
    sum += weights[i];
  }
  for (auto& weight : weights) weight /= sum;
  return weights;
}

// The result errs by at most 0.6 levels: 0.5 are its rounding.
void test_errors_are_small() {
  for (const auto& sizes : all_sizes) {
    const Bytes pixels = paint(sizes.rows, sizes.columns, 7);
    const Bytes made = run(pixels, sizes, {}, count_kernels() - 1);
    for (std::size_t y = 0; y < sizes.target_rows; y += 3)
      for (std::size_t x = 0; x < sizes.target_columns; x += 3) {
        const auto down = weigh(sizes.rows, sizes.target_rows, y);
        const auto across = weigh(sizes.columns, sizes.target_columns, x);
        for (std::size_t c = 0; c < 3; ++c) {
          double exact = 0;
          for (std::size_t i = 0; i < sizes.rows; ++i)
            for (std::size_t k = 0; k < sizes.columns; ++k)
              exact += down[i] * across[k] * pixels[(i * sizes.columns + k) * 3 + c];
          CHECK(std::abs(exact - made[(y * sizes.target_columns + x) * 3 + c]) <= 0.6);
        }
      }
  }
}

// One colour stays that colour, whatever the scale; the same size keeps all pixels.
void test_flat_and_equal_sizes_are_kept() {
  for (const auto& sizes : all_sizes)
    for (const int level : {0, 1, 127, 254, 255}) {
      const Bytes flat(sizes.rows * sizes.columns * 3, static_cast<std::uint8_t>(level));
      for (const auto value : run(flat, sizes, {}, count_kernels() - 1)) CHECK(value == level);
    }
  const Bytes pixels = paint(37, 53, 3);
  CHECK(run(pixels, {37, 53, 37, 53}, {}, count_kernels() - 1) == pixels);
}

// A part of the targets is that part of all, from the sources that it needs alone.
void test_a_part_is_that_of_the_whole() {
  const Bytes pixels = paint(90, 70, 5);
  const Bytes whole = run(pixels, {90, 70, 40, 30}, {}, 0);
  const Resize resize = make_resize(90, 70, 40, 30, 11, 7, 13, 17);
  CHECK(resize.vertical.first_source > 0 && resize.vertical.sources < 50);
  Bytes part(13 * 17 * 3);
  Target target;
  target.pixels = part.data();
  ResampleScratch scratch;
  const auto first = resize.vertical.first_source * 70 + resize.horizontal.first_source;
  resample({pixels.data() + first * 3, 70 * 3}, resize, target, scratch);
  for (std::size_t y = 0; y < 13; ++y)
    CHECK(std::memcmp(&part[y * 17 * 3], &whole[((y + 11) * 30 + 7) * 3], 17 * 3) == 0);
}

// Halves and bfloat16 are rounded to nearest, ties to even; edges of halves are as IEEE 754 has them.
void test_conversions() {
  CHECK(to_half(0.0f) == 0 && to_half(-0.0f) == 0x8000 && to_half(1.0f) == 0x3C00);
  CHECK(to_half(65504.0f) == 0x7BFF && to_half(65519.0f) == 0x7BFF && to_half(65520.0f) == 0x7C00);
  CHECK(to_half(1e10f) == 0x7C00 && to_half(0x1p-24f) == 1 && to_half(0x1p-25f) == 0);
  CHECK(to_half(0x1.8p-24f) == 2 && to_half(0x1p-14f) == 0x0400);
  CHECK(to_half(1.0f + 0x1p-11f) == 0x3C00 && to_half(1.0f + 0x1.8p-10f) == 0x3C02);
  CHECK(to_bfloat(1.0f) == 0x3F80 && to_bfloat(1.0f + 0x1p-8f) == 0x3F80);
  CHECK(to_bfloat(1.0f + 0x1.8p-7f) == 0x3F82);
}

}  // namespace

int main() {
  test_kernels_agree();
  test_errors_are_small();
  test_flat_and_equal_sizes_are_kept();
  test_a_part_is_that_of_the_whole();
  test_conversions();
}
