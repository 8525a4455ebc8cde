#include "order/order.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "ground/limits.hpp"
#include "ground/processor.hpp"
#include "order/order_kernel.hpp"

namespace penstock {

#if defined(__x86_64__)
extern const Level level_avx2;
extern const Level level_avx512;
#endif

namespace {

// SplitMix64: a counter and a mixing function, so that every state gives another sequence.
struct Generator {
  std::uint64_t state;

  std::uint64_t next() noexcept {
    state += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
};

__extension__ typedef unsigned __int128 Product;

std::uint64_t high_product(std::uint64_t x, std::uint64_t y) noexcept {
  return static_cast<std::uint64_t>((Product{x} * y) >> 64);
}

// The plainest lanes: one word each. Several chains at a time still hide the multiplications.
struct Scalar {
  using Words = std::uint32_t;
  static constexpr std::size_t width = 1;
  static constexpr std::size_t unroll = 4;

  static Words all(std::uint32_t x) { return x; }
  static Words add(Words x, Words y) { return x + y; }
  static Words sub(Words x, Words y) { return x - y; }
  static Words mul(Words x, Words y) { return x * y; }
  static Words min(Words x, Words y) { return x < y ? x : y; }
  static Words both(Words x, Words y) { return x & y; }
  static Words either(Words x, Words y) { return x | y; }
  static Words exclusive(Words x, Words y) { return x ^ y; }
  static Words left(Words x, Words by) { return x << by; }
  static Words right(Words x, Words by) { return x >> by; }
  template <unsigned by>
  static Words right(Words x) {
    return x >> by;
  }
  static Words high(Words x, Words y) {
    return static_cast<Words>((std::uint64_t{x} * y) >> 32);
  }
  static Words low(const std::uint64_t* in) { return static_cast<Words>(*in); }
  static Words low(const std::uint64_t* in, std::uint32_t drop) {
    return static_cast<Words>(*in >> drop);
  }
  static std::uint64_t above(Words x, Words last) { return x > last; }
  static void store(Words x, std::uint64_t* out) { *out = x; }
  static std::uint64_t store(Words left, Words right, std::uint32_t bits, std::uint64_t last,
                             std::uint64_t* out) {
    *out = std::uint64_t{left} << bits | right;
    return *out > last;
  }
};

struct Levels {
  std::array<Level, 3> level{Level{"scalar", permute<Scalar, false>, permute<Scalar, true>}};
  std::size_t count = 1;

  Levels() noexcept {
#if defined(__x86_64__)
    if (processor().avx2) level[count++] = level_avx2;
    if (processor().avx512) level[count++] = level_avx512;
#endif
  }
};

// The index of the first value at or above count, or the size.
std::size_t first_outside(std::span<const std::uint64_t> values, std::uint64_t count) noexcept {
  // The top bit of v, or of count - 1 - v, is set where v is outside. Gathering the bits
  // vectorises, a search does not, so the search runs only if there is a value to find.
  std::uint64_t gathered = 0;
  for (const std::uint64_t v : values) gathered |= v | (count - 1 - v);
  if (gathered >> 63 == 0) return values.size();
  const auto outside = [count](std::uint64_t v) { return v >= count; };
  return static_cast<std::size_t>(std::find_if(values.begin(), values.end(), outside) -
                                  values.begin());
}

// Check and map a piece at a time, so that the checked values are still in the first-level cache.
template <class Map>
std::size_t map_checked(std::span<const std::uint64_t> in, std::span<std::uint64_t> out,
                        std::uint64_t count, Map map) noexcept {
  constexpr std::size_t piece = 2048;
  assert(in.size() == out.size());
  for (std::size_t base = 0; base < in.size(); base += piece) {
    const std::size_t size = std::min(piece, in.size() - base);
    const std::size_t outside = first_outside(in.subspan(base, size), count);
    if (outside != size) return base + outside;
    map(in.subspan(base, size), out.subspan(base, size));
  }
  return in.size();
}

void look_up(std::span<const std::uint16_t> table, std::span<const std::uint64_t> in,
             std::span<std::uint64_t> out) noexcept {
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = table[in[i]];
}

}  // namespace

Cipher::Cipher(std::uint64_t count_, std::uint64_t state) : count(count_), keys{} {
  if (count < 1 || count > limits::order_count_max)
    throw std::invalid_argument("a permutation's count is outside 1..2^62");
  const auto length = static_cast<std::uint32_t>(std::bit_width(count - 1));
  right_bits = std::max(4u, length / 2);
  // The smallest domain is 256: below, eight rounds would not mix enough.
  const std::uint64_t needed = (count + (std::uint64_t{1} << right_bits) - 1) >> right_bits;
  left_count = static_cast<std::uint32_t>(std::max<std::uint64_t>(16, needed));
  Generator generator{state};
  for (std::uint32_t& key : keys) key = static_cast<std::uint32_t>(generator.next() >> 32);
}

std::span<const Level> levels() noexcept {
  static const Levels supported;
  return {supported.level.data(), supported.count};
}

Permutation::Permutation(std::uint64_t count, std::uint64_t state, Small small, const Level& level)
    : cipher_(count, state), level_(level) {
  if (small == Small::table && count <= table_count_max) table_ = draw(count, state);
}

std::unique_ptr<const Permutation::Table> Permutation::draw(std::uint64_t count,
                                                            std::uint64_t state) {
  auto table = std::make_unique<Table>();
  auto& forward = table->forward;
  std::iota(forward.begin(), forward.end(), std::uint16_t{0});
  Generator generator{state};
  for (std::size_t j = count - 1; j > 0; --j)
    std::swap(forward[j], forward[high_product(generator.next(), j + 1)]);
  for (std::size_t i = 0; i < count; ++i)
    table->inverse[forward[i]] = static_cast<std::uint16_t>(i);
  return table;
}

std::size_t Permutation::forward(std::span<const std::uint64_t> positions,
                                 std::span<std::uint64_t> samples) const noexcept {
  return map_checked(positions, samples, cipher_.count, [this](auto in, auto out) {
    if (table_)
      look_up(table_->forward, in, out);
    else
      level_.forward(cipher_, in.data(), out.data(), in.size());
  });
}

std::size_t Permutation::inverse(std::span<const std::uint64_t> samples,
                                 std::span<std::uint64_t> positions) const noexcept {
  return map_checked(samples, positions, cipher_.count, [this](auto in, auto out) {
    if (table_)
      look_up(table_->inverse, in, out);
    else
      level_.inverse(cipher_, in.data(), out.data(), in.size());
  });
}

std::size_t Permutation::run(std::uint64_t start, std::span<std::uint64_t> samples) const noexcept {
  // Positions are written where their samples will stand: a piece at a time, they stay in cache.
  constexpr std::size_t piece = 2048;
  for (std::size_t base = 0; base < samples.size(); base += piece) {
    const auto part = samples.subspan(base, std::min(piece, samples.size() - base));
    std::iota(part.begin(), part.end(), start + base);
    const std::size_t mapped = forward(part, part);
    if (mapped != part.size()) return base + mapped;
  }
  return samples.size();
}

Groups::Groups(std::uint64_t count, std::uint64_t span, std::uint64_t state, const Level& level)
    : count_(count), span_(span), state_(state), level_(level) {
  if (count < 1 || count > limits::order_count_max || span < 1)
    throw std::invalid_argument("groups need a count in 1..2^62 and a span of at least 1");
}

std::size_t Groups::forward(std::span<const std::uint64_t> positions,
                            std::span<std::uint64_t> samples) const noexcept {
  return map_groups(positions, samples, level_.forward);
}

std::size_t Groups::inverse(std::span<const std::uint64_t> samples,
                            std::span<std::uint64_t> positions) const noexcept {
  return map_groups(samples, positions, level_.inverse);
}

std::size_t Groups::map_groups(std::span<const std::uint64_t> in, std::span<std::uint64_t> out,
                           Kernel kernel) const noexcept {
  return map_checked(in, out, count_, [&](auto from, auto to) {
    // Neighbours are mostly of one group: one key and one kernel call serve them together.
    for (std::size_t begin = 0, end = 0; begin < from.size(); begin = end) {
      const std::uint64_t group = from[begin] / span_;
      const std::uint64_t base = group * span_;
      const std::uint64_t size = std::min(span_, count_ - base);
      for (; end < from.size() && from[end] - base < size; ++end) to[end] = from[end] - base;
      const Cipher cipher(size, Generator{state_ ^ group}.next());
      kernel(cipher, &to[begin], &to[begin], end - begin);
      for (std::size_t i = begin; i < end; ++i) to[i] += base;
    }
  });
}

}  // namespace penstock
