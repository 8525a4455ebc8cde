// Memory collected and summed: equal to the plain way, and refused where it does not fit.
#include <algorithm>
#include <array>
#include <random>
#include <span>
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

// Windows of an array of 7 x 6 x 5 in chunks of 3 x 4 x 2, some of which leave it; each chunk is in
// memory of its whole shape, also at the array's end.
void copies_windows() {
  using Index = std::array<std::int64_t, 3>;
  constexpr Index size{7, 6, 5}, chunk{3, 4, 2}, shape{4, 4, 3};
  const auto value_at = [](std::int64_t x, std::int64_t y, std::int64_t z) {
    return static_cast<std::uint16_t>(1 + x * 30 + y * 5 + z);
  };
  std::mt19937 random(3);
  std::vector<Index> windows(20);
  for (Index& window : windows) {
    for (std::size_t axis = 0; axis < 3; ++axis) {
      window[axis] = static_cast<std::int64_t>(random() % (size[axis] + 5)) - 4;
    }
  }
  std::vector<std::vector<std::uint16_t>> memory;
  std::vector<std::int64_t> boxes, edges{0}, places, rows;
  for (std::int64_t x = 0; x < size[0]; x += chunk[0]) {
    for (std::int64_t y = 0; y < size[1]; y += chunk[1]) {
      for (std::int64_t z = 0; z < size[2]; z += chunk[2]) {
        const Index end{std::min(x + chunk[0], size[0]), std::min(y + chunk[1], size[1]),
                        std::min(z + chunk[2], size[2])};
        for (const Index& part : {Index{x, y, z}, end, chunk})
          boxes.insert(boxes.end(), part.begin(), part.end());
        auto& values = memory.emplace_back();
        for (std::int64_t i = 0; i < chunk[0]; ++i)
          for (std::int64_t j = 0; j < chunk[1]; ++j)
            for (std::int64_t k = 0; k < chunk[2]; ++k)
              values.push_back(value_at(x + i, y + j, z + k));
        for (std::size_t row = 0; row < windows.size(); ++row) {
          places.insert(places.end(), windows[row].begin(), windows[row].end());
          rows.push_back(static_cast<std::int64_t>(row));
        }
        edges.push_back(static_cast<std::int64_t>(rows.size()));
      }
    }
  }
  std::vector<std::span<const std::byte>> values;
  for (const auto& one : memory) values.push_back(std::as_bytes(std::span(one)));
  const Overlaps overlaps{values, boxes, edges, places, rows, shape};
  for (const unsigned threads : {1u, 3u}) {
    std::vector<std::uint16_t> out(windows.size() * 48);
    const auto bytes = std::as_writable_bytes(std::span(out));
    copy_overlaps(overlaps, 2, bytes, threads);
    std::size_t at = 0;
    for (const Index& window : windows) {
      for (std::int64_t x = window[0]; x < window[0] + shape[0]; ++x) {
        for (std::int64_t y = window[1]; y < window[1] + shape[1]; ++y) {
          for (std::int64_t z = window[2]; z < window[2] + shape[2]; ++z, ++at) {
            const bool inside = x >= 0 && x < size[0] && y >= 0 && y < size[1] && z >= 0 && z < size[2];
            CHECK(out[at] == (inside ? value_at(x, y, z) : 0));
          }
        }
      }
    }
    const auto before = out;
    bool thrown = false;
    try {
      copy_overlaps(overlaps, 2, bytes.first(bytes.size() - 1), threads);
    } catch (const std::out_of_range&) {
      thrown = true;
    }
    CHECK(thrown && out == before);
  }
}

}  // namespace

int main() {
  joins();
  collects();
  copies_windows();
}
