// Moments are those of sums in more bits, whatever the length; bins are those of their edges.
#include "ground/moments.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/check.hpp"

using namespace penstock;

namespace {

template <class T>
void test_sums() {
  std::mt19937_64 random(1);
  std::normal_distribution<double> draw(300, 0.5);
  for (const std::size_t count : {1u, 2u, 31u, 32u, 33u, 2047u, 2048u, 2049u, 65536u, 70001u}) {
    std::vector<T> numbers(count);
    for (T& number : numbers) number = static_cast<T>(draw(random));
    long double sum = 0, squares = 0;
    for (const T number : numbers) sum += static_cast<long double>(number);
    const long double mean = sum / static_cast<long double>(count);
    for (const T number : numbers) {
      const long double far = static_cast<long double>(number) - mean;
      squares += far * far;
    }
    Moments moments{};
    CHECK(sum_moments<T>(numbers, moments));
    const double found = moments.mean + moments.rest;
    CHECK(std::abs(found - static_cast<double>(mean)) <= 1e-13 * found);
    CHECK(std::abs(moments.squares - static_cast<double>(squares)) <=
          1e-12 * static_cast<double>(squares));
    CHECK(moments.low == static_cast<double>(*std::ranges::min_element(numbers)));
    CHECK(moments.high == static_cast<double>(*std::ranges::max_element(numbers)));
    const double before = moments.mean + moments.rest;
    numbers.insert(numbers.begin(), std::numeric_limits<T>::quiet_NaN());
    numbers.push_back(-std::numeric_limits<T>::infinity());
    CHECK(sum_moments<T>(numbers, moments));
    CHECK(moments.finite == static_cast<double>(count) && moments.missing == 1);
    CHECK(moments.low == static_cast<double>(*std::ranges::min_element(
                             numbers.begin() + 1, numbers.end() - 1)));
    CHECK(std::abs(moments.mean + moments.rest - before) <= 1e-14 * before);
    CHECK(std::abs(moments.squares - static_cast<double>(squares)) <=
          1e-12 * static_cast<double>(squares));
  }
  Moments moments{};
  const std::vector<T> none(70, std::numeric_limits<T>::quiet_NaN());
  CHECK(sum_moments<T>(none, moments));
  CHECK(moments.finite == 0 && moments.missing == 70 && moments.low == 0 && moments.squares == 0);
  const std::vector<double> far(70, 1.5e308);
  CHECK(!sum_moments<double>(far, moments));
}

void test_bins() {
  const std::vector<double> edges{-1, -0.5, 0, 0.5, 1};
  const double infinite = std::numeric_limits<double>::infinity();
  const std::vector<double> numbers{-1, -0.5, -0.6, 0, 0.25, 0.5, 1, 0.99, infinite, -infinite,
                                    std::nan(""), 5, -5};
  std::vector<std::int64_t> counts(4);
  count_bins<double>(numbers, edges, 2, counts);
  CHECK(counts == (std::vector<std::int64_t>{3, 1, 2, 4}));
}

}  // namespace

int main() {
  test_sums<float>();
  test_sums<double>();
  test_bins();
}
