// Crops: inside the image for any words, geometry of centres, logarithms that all machines share.
#include "images/crop.hpp"
#include "images/padding.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tests/support/check.hpp"

using namespace penstock::images;

namespace {

CropRule make_random_rule() {
  CropRule rule;
  rule.kind = Kind::random;
  rule.target = {224, 224};
  rule.area_low = 0.08;
  rule.ratio_low = 0.75;
  rule.ratio_high = 4.0 / 3;
  rule.flip_columns = 0.5;
  return rule;
}

void test_crops_lie_in_their_images() {
  const CropRule rule = make_random_rule();
  std::uint64_t state = 1;
  unsigned flipped = 0;
  for (int turn = 0; turn < 4000; ++turn) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const Size image{1 + static_cast<std::uint32_t>(state >> 33) % 70,
                     1 + static_cast<std::uint32_t>(state >> 48) % 900};
    const Crop crop = choose_crop(rule, image, draw_words(state, 3));
    CHECK(crop.width > 0 && crop.height > 0);
    CHECK(crop.left + crop.width <= image.width && crop.top + crop.height <= image.height);
    flipped += crop.flip_columns;
  }
  CHECK(flipped > 1800 && flipped < 2200);
}

// Known values of Philox-4x64-10, as numpy gives them for this key.
void test_words_are_philox() {
  CHECK(draw_words(5, 7)[0] == 3305914267571449506u);
  CHECK(draw_words(5, 7) != draw_words(5, 8) && draw_words(5, 7) != draw_words(6, 7));
}

void test_centres() {
  CropRule rule;
  rule.kind = Kind::centre;
  rule.target = {224, 224};
  rule.shorter = 256;
  Crop crop = choose_crop(rule, {375, 500}, {});
  CHECK(crop.resized.height == 256 && crop.resized.width == 341);
  CHECK(crop.first.top == 16 && crop.first.left == 58);  // 58.5, to even
  CHECK(crop.width == 500 && crop.height == 375);
  rule.shorter = 0;
  crop = choose_crop(rule, {375, 500}, {});
  CHECK(crop.resized.height == 375 && crop.resized.width == 500);
  crop = choose_crop(rule, {100, 500}, {});
  CHECK(crop.resized.height == 224 && crop.resized.width == 1120);
  crop = choose_crop(rule, {1, 1}, {});
  CHECK(crop.resized.height == 224 && crop.resized.width == 224);
  rule.shorter = 16384;
  crop = choose_crop(rule, {1, 65535}, {});
  CHECK(crop.resized.width >= rule.target.width);
}

void test_windows() {
  CropRule rule;
  rule.kind = Kind::window;
  rule.target = {224, 224};
  rule.window.shorter = 256;
  rule.window.longest = 300;
  Crop crop = choose_crop(rule, {375, 500}, {});
  CHECK(crop.resized.height == 225 && crop.resized.width == 300 && crop.fits);
  CHECK(crop.first.top == 0 && crop.first.left == 38);
  rule.window.shorter = rule.window.longest = 0;
  CHECK(!choose_crop(rule, {223, 500}, {}).fits);
  rule.window.pads_small = true;
  crop = choose_crop(rule, {221, 227}, {});
  CHECK(crop.first.top == -1 && crop.first.left == 2);  // 1.5, to even
  rule.columns_first = true;
  rule.flip_columns = 1;
  CHECK(choose_crop(rule, {221, 227}, {}).first.left == 1);
  rule.window.is_drawn = true;
  rule.window.padding = {4, 5, 6, 7};
  Words last;
  last.fill(~std::uint64_t{0});
  CHECK(choose_crop(rule, {221, 227}, {}).first.top == -5);
  CHECK(choose_crop(rule, {221, 227}, last).first.top == 4);  // the last row is the last padded one
  rule.window.padding = {};
  rule.columns_first = false;
  rule.window.cut = {100, 200};
  crop = choose_crop(rule, {221, 227}, last);
  CHECK(crop.top == 121 && crop.left == 27 && crop.width == 200 && crop.resized.width == 224);
}

void test_padding() {
  // 3 pixels at the places -4 ... 6.
  const std::int32_t reflected[] = {0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2};
  const std::int32_t symmetric[] = {2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0};
  const ShownAxis one = show_axis(-4, 11, 3, PadMode::reflect);
  const ShownAxis other = show_axis(-4, 11, 3, PadMode::symmetric);
  for (std::size_t i = 0; i < 11; ++i)
    CHECK(one.sources[i] == reflected[i] && other.sources[i] == symmetric[i]);
  const ShownAxis beside = show_axis(-20, 11, 3, PadMode::constant);
  CHECK(beside.count == 1 && std::ranges::count(beside.sources, -1) == 11);
  CHECK(show_axis(-20, 11, 3, PadMode::edge).count == 1);
  CHECK(show_axis(1, 2, 3, PadMode::constant).sources.empty());
}

void test_logarithms() {
  for (double value = 1e-3; value < 1e3; value *= 1.0137) {
    CHECK(std::abs(stable_log(value) - std::log(value)) <= 4e-16 * std::max(1.0, std::abs(std::log(value))));
    const double power = std::log(value);
    CHECK(std::abs(stable_exp(power) / std::exp(power) - 1) <= 5e-16);
  }
  CHECK(stable_log(1) == 0 && stable_exp(0) == 1);
}

}  // namespace

int main() {
  test_crops_lie_in_their_images();
  test_words_are_philox();
  test_centres();
  test_windows();
  test_padding();
  test_logarithms();
}
