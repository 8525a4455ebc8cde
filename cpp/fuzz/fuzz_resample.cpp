// Any sizes, pixels, layouts and types: all kernels write the same bits, inside their target. Pictures are
// small mostly; some are long enough for taps that are summed exactly.
#include "images/crop.hpp"
#include "images/padding.hpp"
#include "images/resample.hpp"

#include <cstring>
#include <vector>

#include "fuzz/require.hpp"

using namespace penstock;
using namespace penstock::images;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 16) return 0;
  const auto number = [&](std::size_t at, std::uint32_t most) {
    return 1 + (data[at] | std::uint32_t{data[at + 1]} << 8) % most;
  };
  const std::uint32_t most = data[12] < 8 ? 700 : data[12] < 64 ? 90 : 24;
  Size image{number(0, most), number(2, most)};
  if (most == 700) (data[12] % 2 != 0 ? image.height : image.width) = number(0, 12);
  CropRule rule;
  rule.kind = static_cast<Kind>(data[4] % 4);
  rule.target = {number(5, most == 24 ? 20 : 36), number(7, most == 24 ? 20 : 36)};
  rule.shorter = data[9] % 2 != 0 ? 40u + data[9] : 0u;
  rule.area_low = 0.01;
  rule.ratio_low = 0.2;
  rule.ratio_high = 5;
  rule.flip_columns = rule.flip_rows = 0.5;
  rule.window.is_drawn = data[13] % 2 != 0;
  rule.window.pads_small = data[13] % 4 > 1;
  rule.window.shorter = data[13] % 8 > 3 ? rule.shorter : 0u;
  rule.window.padding = {data[14] % 9u, data[14] / 9u % 9u, data[15] % 9u, data[15] / 9u % 9u};
  rule.window.mode = static_cast<PadMode>(data[13] / 8 % 4);
  rule.columns_first = rule.rows_first = data[13] / 32 % 2 != 0;
  Words words;
  for (std::size_t i = 0; i < words.size(); ++i)
    std::memcpy(&words[i], data + i % (size - 7), sizeof words[i]);
  const Crop crop = choose_crop(rule, image, words);
  if (!crop.fits) return 0;
  require(crop.width > 0 && crop.left + crop.width <= image.width);
  require(crop.height > 0 && crop.top + crop.height <= image.height);
  const ShownAxis rows =
      show_axis(crop.first.top, rule.target.height, crop.resized.height, rule.window.mode);
  const ShownAxis columns =
      show_axis(crop.first.left, rule.target.width, crop.resized.width, rule.window.mode);
  require(rows.first + rows.count <= crop.resized.height);
  require(columns.first + columns.count <= crop.resized.width);
  const Resize resize = make_resize(crop.height, crop.width, crop.resized.height,
                                    crop.resized.width, rows.first, columns.first, rows.count,
                                    columns.count);
  require(resize.vertical.first_source + resize.vertical.sources <= crop.height);
  require(resize.horizontal.first_source + resize.horizontal.sources <= crop.width);
  // Memory of exactly the pixels that the taps need: the sanitizer sees a read beside them.
  const std::size_t stride = resize.horizontal.sources * 3;
  std::vector<std::uint8_t> pixels(stride * resize.vertical.sources);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = data[i % size];
  Target target;
  target.layout = static_cast<Layout>(data[10] % 2);
  target.type = static_cast<Type>(data[11] % 4);
  target.flip_columns = crop.flip_columns;
  target.flip_rows = crop.flip_rows;
  target.scale = {0.01f, 1.0f, 1e-6f};
  std::vector<std::uint8_t> made[2];
  ResampleScratch scratch;
  for (unsigned kernel = 0; kernel < count_kernels(); ++kernel) {
    made[kernel].resize(rows.count * columns.count * 3 * size_of(target.type));
    target.pixels = made[kernel].data();
    resample({pixels.data(), stride}, resize, target, scratch, kernel);
    require(made[kernel] == made[0]);
  }
  // A padded target is written once, whole.
  const std::vector<std::uint8_t> shown(rows.count * columns.count * 3, 7);
  std::vector<std::uint8_t> placed(std::size_t{rule.target.height} * rule.target.width * 3 *
                                   size_of(target.type));
  target.pixels = placed.data();
  place_pixels(shown, rows, columns, rule.target, target, {1, 2, 3});
  return 0;
}
