#include "order/deal.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace penstock {
namespace {

constexpr std::size_t insertion_max = 48;
constexpr std::size_t digits = 256;

// Sorts numbers 0, 1, ... by 16-bit keys, the smallest first, equal ones by number.
class KeySort {
 public:
  explicit KeySort(std::size_t most) : sorted_(most), between_(most) {}

  std::span<const std::uint32_t> sort(std::span<const std::uint16_t> keys) {
    const std::size_t count = keys.size();
    if (count <= insertion_max) {
      insert(keys);
    } else {
      radix(keys);
    }
    return {sorted_.data(), count};
  }

 private:
  void insert(std::span<const std::uint16_t> keys) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      std::size_t at = i;
      for (; at > 0 && keys[sorted_[at - 1]] > keys[i]; --at) sorted_[at] = sorted_[at - 1];
      sorted_[at] = static_cast<std::uint32_t>(i);
    }
  }

  void radix(std::span<const std::uint16_t> keys) {
    std::array<std::uint32_t, digits> low{}, high{};
    for (const std::uint16_t key : keys) {
      ++low[key % digits];
      ++high[key / digits];
    }
    std::exclusive_scan(low.begin(), low.end(), low.begin(), std::uint32_t{0});
    std::exclusive_scan(high.begin(), high.end(), high.begin(), std::uint32_t{0});
    for (std::size_t i = 0; i < keys.size(); ++i) {
      between_[low[keys[i] % digits]++] = static_cast<std::uint32_t>(i);
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::uint32_t number = between_[i];
      sorted_[high[keys[number] / digits]++] = number;
    }
  }

  std::vector<std::uint32_t> sorted_, between_;
};

// Numbers below `count` by their sums: finds the one with the smallest, of equal ones the first.
class SumTree {
 public:
  explicit SumTree(std::size_t count) : leaves_(std::bit_ceil(count)), keys_(2 * leaves_) {}

  void clear(std::size_t count) {
    for (std::size_t i = 0; i < leaves_; ++i) keys_[leaves_ + i] = i < count ? i : none;
    for (std::size_t i = leaves_; --i > 0;) keys_[i] = std::min(keys_[2 * i], keys_[2 * i + 1]);
  }

  std::size_t first() const { return static_cast<std::size_t>(keys_[1] & number_mask); }

  void add(std::size_t number, std::uint64_t amount) {
    put(number, keys_[leaves_ + number] + (amount << number_bits));
  }
  void remove(std::size_t number) { put(number, none); }

 private:
  static constexpr unsigned number_bits = 24;  // rows and ranks are fewer: sums have 40 bits
  static constexpr std::uint64_t number_mask = (std::uint64_t{1} << number_bits) - 1;
  static constexpr std::uint64_t none = ~std::uint64_t{0};

  void put(std::size_t number, std::uint64_t key) {
    std::size_t at = leaves_ + number;
    keys_[at] = key;
    while (at > 1) {
      key = std::min(key, keys_[at ^ 1]);
      at /= 2;
      keys_[at] = key;
    }
  }

  std::size_t leaves_;
  std::vector<std::uint64_t> keys_;
};

// What one step needs besides its rows; used again for the next.
struct Table {
  Table(std::size_t rows, std::size_t ranks)
      : by_cost(rows),
        by_sum(ranks),
        tree(ranks),
        dearness(rows),
        sums(ranks),
        excess(ranks),
        counts(ranks) {}

  std::span<const std::uint32_t> sort(std::span<const std::uint16_t> costs) {
    constexpr std::uint16_t most = std::numeric_limits<std::uint16_t>::max();
    std::transform(costs.begin(), costs.end(), dearness.begin(),
                   [](std::uint16_t cost) { return static_cast<std::uint16_t>(most - cost); });
    return by_cost.sort({dearness.data(), costs.size()});
  }

  KeySort by_cost, by_sum;
  SumTree tree;
  std::vector<std::uint16_t> dearness;
  std::vector<std::uint64_t> sums;    // by turn
  std::vector<std::uint16_t> excess;  // of the sums over the smallest
  std::vector<std::size_t> counts;    // rows of each rank
};

void deal_sums(std::span<const std::uint16_t> costs, std::size_t first, std::size_t ranks,
               Table& table, std::span<std::int64_t> dealt) {
  const std::size_t rows = costs.size(), less = rows / ranks, more = rows % ranks;
  table.tree.clear(ranks);
  std::fill(table.counts.begin(), table.counts.end(), 0);
  if (less == 0) {
    for (std::size_t rank = more; rank < ranks; ++rank) table.tree.remove((rank + first) % ranks);
  }
  for (const std::uint32_t row : table.sort(costs)) {
    const std::size_t turn = table.tree.first();
    const std::size_t rank = turn < first ? turn + ranks - first : turn - first;
    dealt[table.counts[rank]++ * ranks + rank] = row;
    if (table.counts[rank] == less + (rank < more ? 1 : 0)) {
      table.tree.remove(turn);
    } else {
      table.tree.add(turn, costs[row]);
    }
  }
}

void deal_stripes(std::span<const std::uint16_t> costs, std::size_t first, std::size_t ranks,
               Table& table, std::span<std::int64_t> dealt) {
  const std::size_t rows = costs.size(), whole = rows - rows % ranks;
  const auto sorted = table.sort(costs);
  std::fill(table.sums.begin(), table.sums.end(), 0);
  for (std::size_t start = 0; start < whole; start += ranks) {
    const std::uint64_t least = *std::min_element(table.sums.begin(), table.sums.end());
    // A stripe makes no sums differ by more than its own rows or the sums before did: 16 bits do.
    for (std::size_t turn = 0; turn < ranks; ++turn) {
      table.excess[turn] = static_cast<std::uint16_t>(table.sums[turn] - least);
    }
    const auto turns = table.by_sum.sort({table.excess.data(), ranks});
    for (std::size_t i = 0; i < ranks; ++i) {
      const std::uint32_t row = sorted[start + i];
      const std::size_t turn = turns[i];
      table.sums[turn] += costs[row];
      dealt[start + (turn < first ? turn + ranks - first : turn - first)] = row;
    }
  }
  const std::size_t more = rows - whole;
  if (more == 0) return;
  const std::uint64_t least = *std::min_element(table.sums.begin(), table.sums.end());
  for (std::size_t rank = 0; rank < more; ++rank) {
    table.excess[rank] = static_cast<std::uint16_t>(table.sums[(rank + first) % ranks] - least);
  }
  const auto chosen = table.by_sum.sort({table.excess.data(), more});
  for (std::size_t i = 0; i < more; ++i) dealt[whole + chosen[i]] = sorted[whole + i];
}

}  // namespace

void deal_rows(std::span<const std::uint16_t> costs, std::span<const std::int64_t> turns,
               std::size_t rows, std::size_t ranks, Dealing dealing,
               std::span<std::int64_t> dealt) {
  constexpr std::size_t most = (std::size_t{1} << 24) - 1;
  const std::size_t steps = turns.size();
  if (rows > most || ranks == 0 || ranks > most || dealt.size() != costs.size() ||
      (steps == 0 ? !costs.empty() : costs.size() / steps != rows || costs.size() % steps != 0)) {
    throw std::invalid_argument("costs, turns and dealt are not of the same steps and rows");
  }
  Table table(rows, ranks);
  const auto count = static_cast<std::int64_t>(ranks);
  for (std::size_t step = 0; step < steps; ++step) {
    const std::int64_t first = (turns[step] % count + count) % count;
    const auto deal = dealing == Dealing::sums ? deal_sums : deal_stripes;
    deal(costs.subspan(step * rows, rows), static_cast<std::size_t>(first), ranks, table,
         dealt.subspan(step * rows, rows));
  }
}

}  // namespace penstock
