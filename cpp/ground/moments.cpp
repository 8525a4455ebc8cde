#include "ground/moments.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace penstock {
namespace {

constexpr std::size_t lanes = 32;
constexpr std::size_t run = 64 * lanes;  // a lane adds up 64 numbers: rounding stays small

using Lanes = std::array<double, lanes>;

// Halves first, as pairwise sums have it.
double join(Lanes& sums) {
  for (std::size_t width = lanes / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

// Calls `add` with each number and its lane, and `close` when lanes are to be joined.
template <class T, class Add, class Close>
void walk(std::span<const T> numbers, Add add, Close close) {
  const std::size_t whole = numbers.size() / lanes * lanes;
  for (std::size_t first = 0; first < whole; first += run) {
    const std::size_t end = std::min(first + run, whole);
    for (std::size_t at = first; at < end; at += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) add(numbers[at + lane], lane);
    }
    close();
  }
  for (std::size_t at = whole; at < numbers.size(); ++at) add(numbers[at], at - whole);
  close();
}

// is_whole: all numbers are finite.
template <bool is_whole, class T>
void sum_up(std::span<const T> numbers, Moments& moments) {
  const auto is_finite = [](T number) { return is_whole || number - number == 0; };
  std::array<T, lanes> low, high;
  low.fill(std::numeric_limits<T>::max());
  high.fill(std::numeric_limits<T>::lowest());
  Lanes sums{}, finite{}, missing{};
  double total = 0;
  moments = {};
  walk(
      numbers,
      [&](T number, std::size_t lane) {
        const bool is_number = is_finite(number);
        sums[lane] += is_number ? static_cast<double>(number) : 0.0;
        low[lane] = is_number && number < low[lane] ? number : low[lane];
        high[lane] = is_number && high[lane] < number ? number : high[lane];
        if constexpr (!is_whole) {
          finite[lane] += is_number ? 1.0 : 0.0;
          missing[lane] += number != number ? 1.0 : 0.0;
        }
      },
      [&] {
        total += join(sums);
        sums = {};
      });
  moments.finite = is_whole ? static_cast<double>(numbers.size()) : join(finite);
  moments.missing = is_whole ? 0.0 : join(missing);
  if (moments.finite == 0) return;
  const double mean = total / moments.finite;
  Lanes rests{}, products{};
  double rest = 0, squares = 0;
  walk(
      numbers,
      [&](T number, std::size_t lane) {
        const double far = is_finite(number) ? static_cast<double>(number) - mean : 0.0;
        rests[lane] += far;
        products[lane] += far * far;
      },
      [&] {
        rest += join(rests);
        squares += join(products);
        rests = products = {};
      });
  rest /= moments.finite;
  moments.low = static_cast<double>(*std::ranges::min_element(low));
  moments.high = static_cast<double>(*std::ranges::max_element(high));
  moments.mean = mean;
  moments.rest = rest;
  moments.squares = std::max(squares - moments.finite * rest * rest, 0.0);
}

}  // namespace

template <class T>
bool sum_moments(std::span<const T> numbers, Moments& moments) {
  sum_up<true>(numbers, moments);
  if (!std::isfinite(moments.mean)) sum_up<false>(numbers, moments);
  return std::isfinite(moments.mean) && std::isfinite(moments.rest) &&
         std::isfinite(moments.squares);
}

template <class T>
void count_bins(std::span<const T> numbers, std::span<const double> edges, double scale,
                std::span<std::int64_t> counts) {
  const std::size_t last = counts.size() - 1;
  const double low = edges.front(), most = static_cast<double>(last);
  for (const T given : numbers) {
    const double number = static_cast<double>(given);
    if (!std::isfinite(number)) continue;
    // Within the bins, whatever the numbers are.
    const double place = std::clamp((number - low) * scale, 0.0, most);
    std::size_t at = static_cast<std::size_t>(place);
    at -= static_cast<std::size_t>(at > 0 && number < edges[at]);
    at += static_cast<std::size_t>(at < last && number >= edges[at + 1]);
    ++counts[at];
  }
}

template bool sum_moments(std::span<const float>, Moments&);
template bool sum_moments(std::span<const double>, Moments&);
template void count_bins(std::span<const float>, std::span<const double>, double,
                         std::span<std::int64_t>);
template void count_bins(std::span<const double>, std::span<const double>, double,
                         std::span<std::int64_t>);

}  // namespace penstock
