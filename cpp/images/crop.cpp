#include "images/crop.hpp"

#include <algorithm>
#include <cmath>

namespace penstock::images {
namespace {

__extension__ typedef unsigned __int128 Product;

std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) noexcept {
  return static_cast<std::uint64_t>(static_cast<Product>(a) * b >> 64);
}

// A number in [0, 1), of a word's upper 53 bits.
double to_unit(std::uint64_t word) noexcept { return static_cast<double>(word >> 11) * 0x1p-53; }

// A whole number in [0, count).
std::uint32_t to_below(std::uint64_t word, std::uint32_t count) noexcept {
  return static_cast<std::uint32_t>(multiply_high(word, count));
}

constexpr double ln2_high = 0x1.62e42fefa38p-1;  // of few bits: its multiples below 2^11 are exact
constexpr double ln2_low = 0x1.ef35793c7673p-45;

// The nearest whole number, of two the even one.
double round_even(double value) noexcept {
  const double low = std::floor(value), rest = value - low;
  if (rest < 0.5 || (rest == 0.5 && std::fmod(low, 2) == 0)) return low;
  return low + 1;
}

Crop draw_crop(const CropRule& rule, Size image, const Words& words) noexcept {
  const double area = static_cast<double>(image.width) * static_cast<double>(image.height);
  const double log_low = stable_log(rule.ratio_low), log_high = stable_log(rule.ratio_high);
  Crop crop;
  for (std::size_t turn = 0; turn < crop_tries; ++turn) {
    const std::uint64_t* word = &words[4 * turn];
    const double part = rule.area_low + to_unit(word[0]) * (rule.area_high - rule.area_low);
    const double ratio = stable_exp(log_low + to_unit(word[1]) * (log_high - log_low));
    const double width = round_even(std::sqrt(area * part * ratio));
    const double height = round_even(std::sqrt(area * part / ratio));
    if (width < 1 || width > image.width || height < 1 || height > image.height) continue;
    crop.width = static_cast<std::uint32_t>(width);
    crop.height = static_cast<std::uint32_t>(height);
    crop.top = to_below(word[2], image.height - crop.height + 1);
    crop.left = to_below(word[3], image.width - crop.width + 1);
    return crop;
  }
  const double ratio = static_cast<double>(image.width) / image.height;
  crop.width = image.width;
  crop.height = image.height;
  if (ratio < rule.ratio_low)
    crop.height = static_cast<std::uint32_t>(
        std::clamp(round_even(image.width / rule.ratio_low), 1.0, static_cast<double>(image.height)));
  else if (ratio > rule.ratio_high)
    crop.width = static_cast<std::uint32_t>(
        std::clamp(round_even(image.height * rule.ratio_high), 1.0, static_cast<double>(image.width)));
  crop.top = (image.height - crop.height) / 2;
  crop.left = (image.width - crop.width) / 2;
  return crop;
}

// `value` by `factor` over `divisor`, rounded down, and at least `least`.
std::uint32_t scale_size(std::uint32_t value, std::uint32_t factor, std::uint32_t divisor,
                         std::uint32_t least) noexcept {
  const std::uint64_t scaled = std::uint64_t{value} * factor / divisor;
  return std::max(least, static_cast<std::uint32_t>(std::min<std::uint64_t>(scaled, 1u << 31)));
}

// Half of a difference, rounded to the nearest whole number, of two the even one.
std::uint32_t halve(std::uint32_t difference) noexcept {
  return difference / 2 + (difference % 2 & difference / 2 % 2);
}

Size resize_whole(const CropRule& rule, Size image) noexcept {
  const Size target = rule.target;
  if (rule.shorter != 0) {
    if (image.width <= image.height)
      return {scale_size(rule.shorter, image.height, image.width, rule.shorter), rule.shorter};
    return {rule.shorter, scale_size(rule.shorter, image.width, image.height, rule.shorter)};
  }
  if (image.height >= target.height && image.width >= target.width) return image;
  if (std::uint64_t{target.height} * image.width >= std::uint64_t{target.width} * image.height)
    return {target.height, scale_size(target.height, image.width, image.height, target.width)};
  return {scale_size(target.width, image.height, image.width, target.height), target.width};
}

Size resize_for_window(const WindowRule& rule, Size image) noexcept {
  if (rule.resized.height != 0) return rule.resized;
  if (rule.shorter == 0 && rule.longest == 0) return image;
  const bool is_tall = image.width <= image.height;
  const std::uint32_t shorter = std::min(image.width, image.height);
  const std::uint32_t longer = std::max(image.width, image.height);
  std::uint32_t now_shorter = shorter, now_longer = longer;
  if (rule.shorter != 0) {
    now_shorter = rule.shorter;
    now_longer = scale_size(rule.shorter, longer, shorter, 1);
  }
  if (rule.longest != 0 && (rule.shorter == 0 || now_longer > rule.longest)) {
    now_shorter = scale_size(rule.longest, now_shorter, now_longer, 1);
    now_longer = rule.longest;
  }
  return is_tall ? Size{now_longer, now_shorter} : Size{now_shorter, now_longer};
}

// Where a window of one axis begins, of a picture with `before` and `after` padded pixels.
std::int64_t place_window(const WindowRule& rule, std::uint32_t size, std::uint32_t window,
                          std::uint32_t before, std::uint32_t after, std::uint64_t word,
                          bool& fits) noexcept {
  std::int64_t padded = std::int64_t{size} + before + after, lead = before;
  const std::int64_t missing = window - padded;
  if (missing > 0) {
    fits &= rule.pads_small;
    if (!rule.is_drawn) return -lead - missing / 2;
    lead += missing;
    padded += 2 * missing;
  }
  const auto rest = static_cast<std::uint32_t>(padded - window);
  return std::int64_t{rule.is_drawn ? to_below(word, rest + 1) : halve(rest)} - lead;
}

Crop choose_window(const CropRule& rule, Size image, const Words& words) noexcept {
  const WindowRule& window = rule.window;
  const bool is_cut = window.cut.height != 0;
  const Size resized = is_cut ? image : resize_for_window(window, image);
  const Size size = is_cut ? window.cut : rule.target;
  const auto& [left, top, right, bottom] = window.padding;
  Crop crop{0, 0, image.width, image.height, resized, {}, false, false, true};
  crop.first.top =
      place_window(window, resized.height, size.height, top, bottom, words[2], crop.fits);
  crop.first.left =
      place_window(window, resized.width, size.width, left, right, words[3], crop.fits);
  if (!is_cut || !crop.fits) return crop;
  crop.left = static_cast<std::uint32_t>(crop.first.left);
  crop.top = static_cast<std::uint32_t>(crop.first.top);
  crop.width = size.width;
  crop.height = size.height;
  crop.resized = rule.target;
  crop.first = {};
  return crop;
}

}  // namespace

double stable_log(double value) noexcept {
  int exponent;
  double fraction = std::frexp(value, &exponent);
  if (fraction < 0x1.6a09e667f3bcdp-1) {  // below the root of a half
    fraction *= 2;
    --exponent;
  }
  // ln m = 2 artanh((m - 1) / (m + 1)), and the argument is at most 0.172.
  const double s = (fraction - 1) / (fraction + 1), square = s * s;
  double sum = 0;
  for (int odd = 23; odd >= 1; odd -= 2) sum = sum * square + 1.0 / odd;
  return exponent * ln2_high + (exponent * ln2_low + 2 * s * sum);
}

double stable_exp(double value) noexcept {
  const double power = round_even(value / (ln2_high + ln2_low));
  const double rest = (value - power * ln2_high) - power * ln2_low;
  double sum = 1;
  for (int turn = 14; turn >= 1; --turn) sum = sum * rest / turn + 1;
  return std::ldexp(sum, static_cast<int>(power));
}

Words draw_words(std::uint64_t key, std::uint64_t sample) noexcept {
  Words words;
  for (std::size_t block = 0; block < words.size() / 4; ++block) {
    std::uint64_t x0 = block + 1, x1 = 0, x2 = 0, x3 = 0, key0 = key, key1 = sample;
    for (int round = 0; round < 10; ++round) {
      const Product one = static_cast<Product>(0xD2E7470EE14C6C93u) * x0;
      const Product two = static_cast<Product>(0xCA5A826395121157u) * x2;
      x0 = static_cast<std::uint64_t>(two >> 64) ^ x1 ^ key0;
      x1 = static_cast<std::uint64_t>(two);
      x2 = static_cast<std::uint64_t>(one >> 64) ^ x3 ^ key1;
      x3 = static_cast<std::uint64_t>(one);
      key0 += 0x9E3779B97F4A7C15u;
      key1 += 0xBB67AE8584CAA73Bu;
    }
    words[4 * block] = x0;
    words[4 * block + 1] = x1;
    words[4 * block + 2] = x2;
    words[4 * block + 3] = x3;
  }
  return words;
}

Crop choose_crop(const CropRule& rule, Size image, const Words& words) noexcept {
  Crop crop{0, 0, image.width, image.height, rule.target, {}, false, false, true};
  if (rule.kind == Kind::random) {
    crop = draw_crop(rule, image, words);
    crop.resized = rule.target;
  } else if (rule.kind == Kind::centre) {
    crop.resized = resize_whole(rule, image);
    crop.first = {halve(crop.resized.height - rule.target.height),
                  halve(crop.resized.width - rule.target.width)};
  } else if (rule.kind == Kind::window) {
    crop = choose_window(rule, image, words);
  }
  crop.flip_columns = to_unit(words[4 * crop_tries]) < rule.flip_columns;
  crop.flip_rows = to_unit(words[4 * crop_tries + 1]) < rule.flip_rows;
  if (!crop.fits) return crop;
  if (crop.flip_columns && rule.columns_first) {
    crop.left = image.width - crop.width - crop.left;
    crop.first.left = std::int64_t{crop.resized.width} - rule.target.width - crop.first.left;
  }
  if (crop.flip_rows && rule.rows_first) {
    crop.top = image.height - crop.height - crop.top;
    crop.first.top = std::int64_t{crop.resized.height} - rule.target.height - crop.first.top;
  }
  return crop;
}

}  // namespace penstock::images
