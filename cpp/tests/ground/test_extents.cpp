// Sorted extents are those of a stable sort of pairs, whatever bits differ; merged ones hold all.
#include "ground/extents.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>

#include "ground/limits.hpp"
#include "tests/support/check.hpp"

using namespace penstock;

namespace {

void test_sorting() {
  std::mt19937_64 random(1);
  for (std::size_t turn = 0; turn < 600; ++turn) {
    const std::size_t count = random() % (turn % 3 == 0 ? 40 : 5000);
    const unsigned file_bits = random() % 33, offset_bits = random() % 65, aligned = random() % 14;
    std::vector<std::uint32_t> files(count), order(count), wanted(count);
    std::vector<std::int64_t> offsets(count);
    for (std::size_t i = 0; i < count; ++i) {
      files[i] = file_bits == 0 ? 7 : static_cast<std::uint32_t>(random() >> (64 - file_bits));
      const std::uint64_t offset = offset_bits == 0 ? 9 : random() >> (64 - offset_bits);
      offsets[i] = static_cast<std::int64_t>(offset >> aligned << aligned);
    }
    if (turn % 5 == 0) std::sort(offsets.begin(), offsets.end());
    sort_extents(files, offsets, order);
    std::iota(wanted.begin(), wanted.end(), 0u);
    std::stable_sort(wanted.begin(), wanted.end(), [&](std::uint32_t a, std::uint32_t b) {
      return files[a] != files[b] ? files[a] < files[b] : offsets[a] < offsets[b];
    });
    CHECK(order == wanted);
  }
}

void test_merging() {
  constexpr std::size_t count = 3000;
  std::mt19937_64 random(2);
  std::vector<std::uint32_t> file(count), part(count);
  std::vector<std::int64_t> offset(count), length(count, 512), target(count);
  for (std::size_t i = 0; i < count; ++i) {
    file[i] = static_cast<std::uint32_t>(random() % 3);
    offset[i] = static_cast<std::int64_t>(random() % 4000) * 512;
    part[i] = static_cast<std::uint32_t>(random() % 4);
    target[i] = static_cast<std::int64_t>(i);
  }
  for (const std::uint64_t reader : {0, 1, 6}) {
    const auto merged = merge_extents({file, offset, length, part, target}, 4, 512, reader, 7);
    CHECK(merged.part_runs.size() == 5 && merged.edges.back() == count);
    CHECK(merged.part_runs.back() == static_cast<std::int64_t>(merged.edges.size()) - 1);
    for (std::uint32_t k = 0; k < 4; ++k)
      for (auto run = merged.part_runs[k]; run < merged.part_runs[k + 1]; ++run) {
        const auto first = static_cast<std::size_t>(merged.edges[static_cast<std::size_t>(run)]);
        const auto last = static_cast<std::size_t>(merged.edges[static_cast<std::size_t>(run) + 1]);
        CHECK(first < last && last - first <= limits::run_extents_max);
        std::uint32_t earliest = merged.part[first];
        for (std::size_t i = first + 1; i < last; ++i) {
          CHECK(merged.file[i] == merged.file[first]);
          const std::int64_t gap = merged.offset[i] - merged.offset[i - 1] - 512;
          CHECK(gap >= 0 && gap <= 512);
          earliest = std::min(earliest, merged.part[i]);
        }
        CHECK(earliest == k);
      }
    auto targets = merged.target;
    std::sort(targets.begin(), targets.end());
    CHECK(targets == target);
  }
}

template <class Call>
bool is_refused(Call call) {
  try {
    call();
    return false;
  } catch (const std::invalid_argument&) {
    return true;
  }
}

void test_refusals() {
  const std::vector<std::uint32_t> two{0, 0}, one{0}, far{0, 5};
  const std::vector<std::int64_t> places{0, 8}, place{0};
  CHECK(is_refused([&] { merge_extents({two, places, places, one, places}, 1, 0, 0, 1); }));
  CHECK(is_refused([&] { merge_extents({two, places, place, two, places}, 1, 0, 0, 1); }));
  CHECK(is_refused([&] { merge_extents({two, places, places, two, places}, 0, 0, 0, 1); }));
  CHECK(is_refused([&] { merge_extents({two, places, places, far, places}, 5, 0, 0, 1); }));
  CHECK(is_refused([&] { merge_extents({two, places, places, two, places}, 1, 0, 1, 1); }));
  CHECK(merge_extents({}, 2, 0, 0, 1).part_runs.size() == 3);
}

}  // namespace

int main() {
  test_sorting();
  test_merging();
  test_refusals();
  return 0;
}
