// Shuffled rows: what the permutation says, in both ways, of any size, in place, on any threads.
#include "order/shuffle.hpp"

#include <cstring>
#include <stdexcept>
#include <vector>

#include "tests/support/check.hpp"

using penstock::Permutation;
using penstock::CacheLimits;
using Bytes = std::vector<std::byte>;

namespace {

constexpr CacheLimits everything{.bytes = std::size_t{1} << 40, .streams = 1};

Bytes numbered(std::size_t bytes) {
  Bytes made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 0x9E3779B1u >> 13);
  return made;
}

Bytes expected(const Permutation& permutation, const Bytes& in, std::size_t row_bytes) {
  Bytes out(in.size());
  for (std::uint64_t i = 0; i < in.size() / row_bytes; ++i) {
    std::uint64_t sample = 0;
    CHECK(permutation.run(i, {&sample, 1}) == 1);
    std::memcpy(&out[i * row_bytes], &in[sample * row_bytes], row_bytes);
  }
  return out;
}

// `offset` moves the rows away from where cache lines begin.
void compare(std::size_t count, std::size_t row_bytes, unsigned threads, const CacheLimits& caches,
             std::size_t offset) {
  const Permutation permutation(count, 7);
  const std::size_t bytes = count * row_bytes;
  const Bytes in = numbered(bytes);
  const Bytes right = expected(permutation, in, row_bytes);
  Bytes out(bytes + offset + 1, std::byte{0xA5});
  const std::span<std::byte> place{out.data() + offset, bytes};
  shuffle_rows(permutation, in, place, row_bytes, threads, caches);
  CHECK(std::memcmp(place.data(), right.data(), bytes) == 0);
  CHECK(out.back() == std::byte{0xA5} && (offset == 0 || out[offset - 1] == std::byte{0xA5}));
  std::memcpy(place.data(), in.data(), bytes);
  shuffle_rows(permutation, place, place, row_bytes, threads, caches);
  CHECK(std::memcmp(place.data(), right.data(), bytes) == 0);
}

void every_way() {
  for (const std::size_t row_bytes : {1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 100}) {
    for (const std::size_t count : {1, 2, 100, 4096, 5000, 70000}) {
      compare(count, row_bytes, 2, everything, 0);
      compare(count, row_bytes, 2, {.bytes = 0, .streams = 8}, 0);
    }
    compare(140000, row_bytes, 3, {.bytes = 0, .streams = 2}, 0);  // places of four bytes
    for (const std::size_t offset : {1, 4, 8, 16, 40})
      compare(9000, row_bytes, 2, {.bytes = 0, .streams = 8}, offset);
  }
}

void refusals() {
  const Permutation permutation(4, 7);
  Bytes four(4), five(5);
  for (const auto& [in, out, row_bytes, threads] :
       {std::tuple{&four, &five, 1u, 1u}, {&five, &five, 2u, 1u}, {&four, &four, 0u, 1u},
        {&four, &four, 1u, 0u}}) {
    bool refused = false;
    try {
      shuffle_rows(permutation, *in, *out, row_bytes, threads);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
}

}  // namespace

int main() {
  every_way();
  refusals();
}
