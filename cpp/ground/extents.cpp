#include "ground/extents.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "ground/limits.hpp"

namespace penstock {
namespace {

constexpr std::size_t few = 32;  // that insertion sorts faster

// The bits of a column that differ: `low` below the lowest, `count` from there to the highest.
struct Varying {
  unsigned low = 0, count = 0;

  explicit Varying(std::uint64_t differences) {
    if (differences == 0) return;
    low = static_cast<unsigned>(std::countr_zero(differences));
    count = static_cast<unsigned>(std::bit_width(differences)) - low;
  }

  // A shorter value that sorts as this one does among all of the column.
  std::uint64_t compact(std::uint64_t value) const {
    return count == 0 ? 0 : value >> low & ~std::uint64_t{0} >> (64 - count);
  }
};

// An item is its key, with the number of its extent in the low bits, or beside it.
struct Numbered {
  std::uint64_t key;
  std::uint32_t number;
};
std::uint64_t key_of(std::uint64_t item) { return item; }
std::uint64_t key_of(const Numbered& item) { return item.key; }

// Sort by bits [begin, end) of the keys, stably; `items` and `spare` may be exchanged.
template <class Item>
void sort_by_bits(Item*& items, Item*& spare, std::size_t count, unsigned begin, unsigned end) {
  if (count <= few) {
    for (std::size_t i = 1; i < count; ++i) {
      const Item item = items[i];
      std::size_t place = i;
      for (; place > 0 && key_of(items[place - 1]) > key_of(item); --place)
        items[place] = items[place - 1];
      items[place] = item;
    }
    return;
  }
  constexpr unsigned wide = 11, narrow = 8;
  const unsigned widest = count < 2048 ? narrow : wide;
  const unsigned passes = (end - begin + widest - 1) / widest;
  for (unsigned pass = 0; pass < passes; ++pass) {
    const unsigned shift = begin + (end - begin) * pass / passes;
    const unsigned bits = begin + (end - begin) * (pass + 1) / passes - shift;
    const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
    std::array<std::uint32_t, 1u << wide> place;
    std::fill_n(place.begin(), mask + 1, 0u);
    for (std::size_t i = 0; i < count; ++i) ++place[key_of(items[i]) >> shift & mask];
    std::exclusive_scan(place.begin(), place.begin() + mask + 1, place.begin(), 0u);
    for (std::size_t i = 0; i < count; ++i)
      spare[place[key_of(items[i]) >> shift & mask]++] = items[i];
    std::swap(items, spare);
  }
}

}  // namespace

void sort_extents(std::span<const std::uint32_t> files, std::span<const std::int64_t> offsets,
                  std::span<std::uint32_t> order) {
  const std::size_t count = files.size();
  if (offsets.size() != count || order.size() != count)
    throw std::invalid_argument("columns differ in length");
  if (count > std::numeric_limits<std::uint32_t>::max())
    throw std::invalid_argument("more than 2^32 extents are sorted at once");
  if (count == 0) return;
  std::uint64_t file_bits = 0, offset_bits = 0;
  bool sorted = true;
  for (std::size_t i = 1; i < count; ++i) {
    file_bits |= files[i] ^ files[0];
    offset_bits |= static_cast<std::uint64_t>(offsets[i] ^ offsets[0]);
    sorted = sorted && (files[i] > files[i - 1] ||
                        (files[i] == files[i - 1] && offsets[i] >= offsets[i - 1]));
  }
  if (sorted) return std::iota(order.begin(), order.end(), 0u);
  const Varying file(file_bits), offset(offset_bits);
  // Negative offsets come first: as unsigned numbers they would be last.
  constexpr std::uint64_t sign = std::uint64_t{1} << 63;
  const auto offset_key = [&](std::size_t i) {
    return offset.compact(static_cast<std::uint64_t>(offsets[i]) ^ sign);
  };
  const auto number_bits = static_cast<unsigned>(std::bit_width(count - 1));
  const unsigned key_bits = file.count + offset.count;
  if (key_bits + number_bits <= 64) {
    const auto memory = std::make_unique_for_overwrite<std::uint64_t[]>(2 * count);
    std::uint64_t* items = memory.get();
    std::uint64_t* spare = items + count;
    const unsigned file_shift = offset.count + number_bits;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t high = file.count == 0 ? 0 : file.compact(files[i]) << file_shift;
      items[i] = high | offset_key(i) << number_bits | i;
    }
    sort_by_bits(items, spare, count, number_bits, number_bits + key_bits);
    const std::uint64_t number = (std::uint64_t{1} << number_bits) - 1;
    for (std::size_t i = 0; i < count; ++i) order[i] = static_cast<std::uint32_t>(items[i] & number);
    return;
  }
  const auto memory = std::make_unique_for_overwrite<Numbered[]>(2 * count);
  Numbered* items = memory.get();
  Numbered* spare = items + count;
  for (std::size_t i = 0; i < count; ++i) items[i] = {offset_key(i), static_cast<std::uint32_t>(i)};
  sort_by_bits(items, spare, count, 0, offset.count);
  for (std::size_t i = 0; i < count; ++i) items[i].key = file.compact(files[items[i].number]);
  sort_by_bits(items, spare, count, 0, file.count);
  for (std::size_t i = 0; i < count; ++i) order[i] = items[i].number;
}

namespace {

// Marks the extents of a sorted sequence at which a run begins.
std::vector<std::uint32_t> find_run_starts(const PlacedExtents& placed,
                                           std::span<const std::uint32_t> order,
                                           std::uint64_t gap_bytes) {
  std::vector<std::uint32_t> starts;
  starts.reserve(order.size());
  constexpr auto bytes_max = static_cast<std::int64_t>(limits::run_bytes_max);
  const auto piece_of = [](std::int64_t bytes) {  // rounds down, also below 0
    return bytes >= 0 ? bytes / bytes_max : (bytes + 1) / bytes_max - 1;
  };
  std::int64_t origin = 0, end = 0, piece = 0;
  std::uint32_t nth = 0, file = 0;
  bool crosses = false;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::uint32_t extent = order[i];
    const std::int64_t offset = placed.offset[extent];
    // As unsigned numbers overlaps, which cannot share a read, are the largest gaps.
    const auto gap = static_cast<std::uint64_t>(offset) - static_cast<std::uint64_t>(end);
    const bool begins = i == 0 || placed.file[extent] != file || gap > gap_bytes;
    if (begins) {
      origin = offset;
      nth = 0;
    }
    file = placed.file[extent];
    end = static_cast<std::int64_t>(static_cast<std::uint64_t>(offset) +
                                    static_cast<std::uint64_t>(placed.length[extent]));
    // Neighbours that are too many or too large together are cut at multiples of the limits from
    // where the first began. An extent across such a multiple is alone: what follows it ends as far
    // as a whole limit later.
    const std::int64_t last = piece_of(end - origin - 1);
    const std::int64_t here = std::max<std::int64_t>(nth / limits::run_extents_max, last);
    if (begins || here != piece || crosses) starts.push_back(static_cast<std::uint32_t>(i));
    crosses = last > piece_of(offset - origin);
    piece = here;
    ++nth;
  }
  return starts;
}

template <class T>
std::vector<T> take(std::span<const T> column, std::span<const std::uint32_t> order) {
  std::vector<T> taken(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) taken[i] = column[order[i]];
  return taken;
}

}  // namespace

MergedExtents merge_extents(const PlacedExtents& placed, std::uint32_t parts,
                            std::uint64_t gap_bytes, std::uint64_t reader, std::uint64_t readers) {
  const std::size_t count = placed.file.size();
  if (placed.length.size() != count || placed.part.size() != count || placed.target.size() != count)
    throw std::invalid_argument("columns differ in length");
  if (reader >= readers) throw std::invalid_argument("there is no such reader");
  std::vector<std::uint32_t> sorted(count);
  sort_extents(placed.file, placed.offset, sorted);
  const auto starts = find_run_starts(placed, sorted, gap_bytes);
  const std::size_t runs = starts.size();
  const auto end_of = [&](std::size_t run) { return run + 1 < runs ? starts[run + 1] : count; };
  MergedExtents merged;
  merged.part_runs.assign(std::size_t{parts} + 1, 0);
  std::vector<std::uint32_t> wanted(runs);
  for (std::size_t run = 0; run < runs; ++run) {
    std::uint32_t first = placed.part[sorted[starts[run]]];
    for (std::size_t i = starts[run] + 1; i < end_of(run); ++i)
      first = std::min(first, placed.part[sorted[i]]);
    if (first >= parts) throw std::invalid_argument("there is no such part");
    wanted[run] = first;
    ++merged.part_runs[std::size_t{first} + 1];
  }
  std::partial_sum(merged.part_runs.begin(), merged.part_runs.end(), merged.part_runs.begin());
  // Runs by part, from the reader's own start on.
  std::vector<std::uint32_t> by_part(runs);
  std::vector<std::int64_t> place(merged.part_runs.begin(), merged.part_runs.end() - 1);
  const std::size_t begin = runs == 0 ? 0 : reader * runs / readers;
  for (std::size_t i = 0; i < runs; ++i) {
    const std::size_t run = begin + i < runs ? begin + i : begin + i - runs;
    by_part[static_cast<std::size_t>(place[wanted[run]]++)] = static_cast<std::uint32_t>(run);
  }
  std::vector<std::uint32_t> order(count);
  merged.edges.resize(runs + 1);
  std::size_t at = 0;
  for (std::size_t i = 0; i < runs; ++i) {
    for (std::size_t from = starts[by_part[i]]; from < end_of(by_part[i]); ++from)
      order[at++] = sorted[from];
    merged.edges[i + 1] = static_cast<std::int64_t>(at);
  }
  merged.file = take(placed.file, order);
  merged.offset = take(placed.offset, order);
  merged.length = take(placed.length, order);
  merged.part = take(placed.part, order);
  merged.target = take(placed.target, order);
  return merged;
}

}  // namespace penstock
