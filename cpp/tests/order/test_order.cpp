// The order: golden values, bijections, round trips, and all levels equal.
#include "order/order.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <initializer_list>
#include <new>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/support/check.hpp"

using penstock::Level;
using penstock::Permutation;
using penstock::Small;
using Values = std::vector<std::uint64_t>;

static std::atomic<std::size_t> allocations = 0;

// Not inlined: the compiler would see free() meet the result of new and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

constexpr std::uint64_t two_to(unsigned m) { return std::uint64_t{1} << m; }

Values forward(const Permutation& permutation, const Values& in) {
  Values out(in.size());
  CHECK(permutation.forward(in, out) == in.size());
  return out;
}

Values inverse(const Permutation& permutation, const Values& in) {
  Values out(in.size());
  CHECK(permutation.inverse(in, out) == in.size());
  return out;
}

void golden_values() {
  for (const Level& level : penstock::levels()) {
    const Permutation imagenet(1281167, 42, Small::table, level);
    CHECK((forward(imagenet, {0, 1, 2, 640583, 1281166}) ==
           Values{1008599, 837175, 1164390, 1252445, 1035728}));
    const Permutation largest(two_to(62), 42, Small::table, level);
    CHECK((forward(largest, {0, 1, two_to(62) - 1}) ==
           Values{3753331152082875161, 1970796709776910122, 3391646890703037486}));
    const Permutation small(100, 42, Small::cipher, level);
    CHECK((forward(small, {0, 1, 2, 50, 99}) == Values{54, 99, 31, 36, 82}));
  }
  const Permutation table(10, 42);
  Values all(10);
  CHECK(table.run(0, all) == 10);
  CHECK((all == Values{8, 3, 6, 5, 4, 0, 9, 2, 1, 7}));
}

void bijection(std::uint64_t count, Small small, const Level& level) {
  const Permutation permutation(count, count * 77, small, level);
  Values all(count), sorted(count);
  CHECK(permutation.run(0, all) == count);
  std::iota(sorted.begin(), sorted.end(), 0u);
  CHECK(inverse(permutation, all) == sorted);
  std::sort(all.begin(), all.end());
  CHECK(all == sorted);
}

// Both edges and a spread of positions, in place too, at every level.
void round_trip(std::uint64_t count) {
  Values positions;
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(32, count); ++i) {
    positions.push_back(i);
    positions.push_back(count - 1 - i);
  }
  for (std::uint64_t i = 0; i < 2000; ++i)
    positions.push_back(i * 0x9E3779B97F4A7C15u % count);
  const Permutation reference(count, 9, Small::cipher, penstock::levels().front());
  const Values samples = forward(reference, positions);
  for (const Level& level : penstock::levels()) {
    const Permutation permutation(count, 9, Small::cipher, level);
    CHECK(forward(permutation, positions) == samples);
    CHECK(inverse(permutation, samples) == positions);
    Values values = positions;  // in place
    CHECK(permutation.forward(values, values) == values.size());
    CHECK(values == samples);
    CHECK(permutation.inverse(values, values) == values.size());
    CHECK(values == positions);
  }
}

void outside_is_reported() {
  for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{4096}, two_to(40) + 1}) {
    const Permutation permutation(count, 5);
    Values values(5000, 0), out(5000);
    values[3210] = count;
    CHECK(permutation.forward(values, out) == 3210);
    CHECK(permutation.inverse(values, out) == 3210);
    values[7] = ~std::uint64_t{0};
    CHECK(permutation.forward(values, out) == 7);
    Values tail(3);
    CHECK(permutation.run(count, tail) == 0);
    CHECK(permutation.run(count - 1, tail) == 1);
  }
}

void bad_counts_throw() {
  for (const std::uint64_t count : {std::uint64_t{0}, two_to(62) + 1}) {
    bool thrown = false;
    try {
      const Permutation permutation(count, 1);
    } catch (const std::invalid_argument&) {
      thrown = true;
    }
    CHECK(thrown);
  }
}

void mapping_allocates_nothing() {
  for (const std::uint64_t count : {std::uint64_t{1000}, two_to(30)}) {
    const Permutation permutation(count, 3);
    Values values(1000);
    const std::size_t before = allocations;
    CHECK(permutation.run(0, values) == values.size());
    CHECK(permutation.inverse(values, values) == values.size());
    CHECK(permutation.forward(values, values) == values.size());
    CHECK(allocations == before);
  }
}

// Whole groups, a smaller last one, in place, and values that jump between groups.
void groups_stay_apart() {
  constexpr std::uint64_t count = 10'000, span = 300;
  const penstock::Groups reference(count, span, 4, penstock::levels().front());
  Values places(count), expected(count);
  for (std::uint64_t i = 0; i < count; ++i) places[i] = i * 7919 % count;
  CHECK(reference.forward(places, expected) == count);
  for (std::size_t i = 0; i < count; ++i) CHECK(expected[i] / span == places[i] / span);
  for (const Level& level : penstock::levels()) {
    const penstock::Groups groups(count, span, 4, level);
    Values values = places;
    CHECK(groups.forward(values, values) == count);
    CHECK(values == expected);
    CHECK(groups.inverse(values, values) == count);
    CHECK(values == places);
    values[5000] = count;
    CHECK(groups.forward(values, values) == 5000);
  }
}

void threads_share_a_permutation() {
  const Permutation permutation(1'000'003, 8);
  Values whole(100'000), parts(100'000);
  CHECK(permutation.run(0, whole) == whole.size());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      CHECK(permutation.run(t * 25'000, std::span(parts).subspan(t * 25'000, 25'000)) == 25'000);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(parts == whole);
}

}  // namespace

int main() {
  golden_values();
  outside_is_reported();
  bad_counts_throw();
  mapping_allocates_nothing();
  groups_stay_apart();
  threads_share_a_permutation();
  for (const Level& level : penstock::levels()) {
    for (std::uint64_t count = 1; count <= 300; ++count) {
      bijection(count, Small::cipher, level);
      bijection(count, Small::table, level);
    }
    for (const std::uint64_t count : {4095, 4096, 4097, 65536, 65537, 262145})
      bijection(count, Small::table, level);
  }
  round_trip(100'000'000);
  for (const unsigned m : {27, 28, 31, 32, 33, 40, 48, 53, 60, 61})
    for (const std::uint64_t count : {two_to(m) - 1, two_to(m), two_to(m) + 1}) round_trip(count);
  round_trip(two_to(62) - 1);
  round_trip(two_to(62));
}
