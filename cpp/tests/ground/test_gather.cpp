// Memory collected and summed: equal to the plain way, and refused where it does not fit.
#include <random>
#include <stdexcept>
#include <vector>

#include "tests/support/check.hpp"
#include "ground/crc32c.hpp"
#include "ground/gather.hpp"

using namespace penstock;

namespace {

std::vector<std::byte> noise(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

void joins() {
  const auto data = noise(5000, 1);
  const std::span<const std::byte> all(data);
  for (const std::size_t at : {0u, 1u, 7u, 64u, 2500u, 4999u, 5000u}) {
    const auto joined =
        crc32c_concat(crc32c(all.first(at)), crc32c(all.subspan(at)), all.size() - at);
    CHECK(joined == crc32c(all));
  }
}

void collects() {
  const std::vector<std::size_t> sizes{0, 1, 64, 4097, (std::size_t{5} << 20) + 3, 63};
  std::vector<std::vector<std::byte>> sources;
  std::vector<std::uint64_t> from;
  std::vector<std::int64_t> lengths;
  std::size_t room = 0;
  for (const std::size_t size : sizes) {
    sources.push_back(noise(size + 1, static_cast<unsigned>(size)));
    from.push_back(reinterpret_cast<std::uint64_t>(sources.back().data() + 1));  // not aligned
    lengths.push_back(static_cast<std::int64_t>(size));
    room += (size + 63) / 64 * 64;
  }
  for (const unsigned threads : {1u, 3u}) {
    std::vector<std::byte> out(room, std::byte{0xff});
    std::vector<std::uint32_t> sums(sizes.size(), 7);
    pack_extents(from, lengths, 64, out, threads, sums);
    std::size_t at = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::size_t padded = (sizes[i] + 63) / 64 * 64;
      std::vector<std::byte> wanted(sources[i].begin() + 1, sources[i].end());
      wanted.resize(padded);
      CHECK(std::equal(wanted.begin(), wanted.end(), out.begin() + static_cast<std::ptrdiff_t>(at)));
      CHECK(sums[i] == crc32c(wanted));
      at += padded;
    }
  }
  std::vector<std::uint32_t> sums(sizes.size());
  for (const std::size_t wrong : {room - 1, room + 1, room - 64, std::size_t{0}}) {
    std::vector<std::byte> out(wrong);
    bool thrown = false;
    try {
      pack_extents(from, lengths, 64, out, 2, sums);
    } catch (const std::out_of_range&) {
      thrown = true;
    }
    CHECK(thrown);
  }
}

}  // namespace

int main() {
  joins();
  collects();
}
