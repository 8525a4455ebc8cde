// Rows dealt by cost: the rule in plain loops, sums that stay near, sizes that do not fit.
#include "order/deal.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "tests/support/check.hpp"

namespace {

using Costs = std::vector<std::uint16_t>;
using Rows = std::vector<std::int64_t>;

Rows deal_plainly(const Costs& costs, std::size_t turn, std::size_t ranks, bool in_stripes) {
  const std::size_t rows = costs.size();
  Rows sorted(rows), dealt(rows);
  std::iota(sorted.begin(), sorted.end(), 0);
  std::stable_sort(sorted.begin(), sorted.end(), [&](std::int64_t a, std::int64_t b) {
    return costs[static_cast<std::size_t>(a)] > costs[static_cast<std::size_t>(b)];
  });
  std::vector<std::uint64_t> sums(ranks);
  if (!in_stripes) {
    std::vector<std::size_t> counts(ranks);
    for (const std::int64_t row : sorted) {
      std::size_t best = ranks;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (counts[rank] == rows / ranks + (rank < rows % ranks ? 1 : 0)) continue;
        const bool first = best == ranks || sums[rank] < sums[best] ||
                           (sums[rank] == sums[best] && (rank + turn) % ranks < (best + turn) % ranks);
        if (first) best = rank;
      }
      sums[best] += costs[static_cast<std::size_t>(row)];
      dealt[counts[best]++ * ranks + best] = row;
    }
    return dealt;
  }
  for (std::size_t start = 0; start < rows; start += ranks) {
    const std::size_t some = std::min(ranks, rows - start);
    std::vector<std::size_t> order(some);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      if (sums[a] != sums[b]) return sums[a] < sums[b];
      return some == ranks && (a + turn) % ranks < (b + turn) % ranks;
    });
    for (std::size_t i = 0; i < some; ++i) {
      const std::int64_t row = sorted[start + i];
      sums[order[i]] += costs[static_cast<std::size_t>(row)];
      dealt[start + order[i]] = row;
    }
  }
  return dealt;
}

void compare(std::mt19937_64& random, std::size_t rows, std::size_t ranks, unsigned most) {
  const std::size_t steps = 1 + random() % 3;
  Costs costs(steps * rows);
  for (auto& cost : costs) cost = static_cast<std::uint16_t>(random() % (most + 1));
  std::vector<std::int64_t> turns(steps);
  for (auto& turn : turns) turn = static_cast<std::int64_t>(random() % 1000) - 500;
  Rows dealt(costs.size(), -1);
  const bool in_stripes = random() % 2 == 0;
  const auto dealing = in_stripes ? penstock::Dealing::stripes : penstock::Dealing::sums;
  penstock::deal_rows(costs, turns, rows, ranks, dealing, dealt);
  for (std::size_t step = 0; step < steps; ++step) {
    const auto at = static_cast<std::ptrdiff_t>(step * rows);
    const auto end = at + static_cast<std::ptrdiff_t>(rows);
    const auto count = static_cast<std::int64_t>(ranks);
    const auto turn = static_cast<std::size_t>((turns[step] % count + count) % count);
    const Costs own(costs.begin() + at, costs.begin() + end);
    CHECK(Rows(dealt.begin() + at, dealt.begin() + end) == deal_plainly(own, turn, ranks, in_stripes));
  }
}

void refuse(std::size_t costs, std::size_t steps, std::size_t rows, std::size_t ranks,
            std::size_t dealt) {
  Rows out(dealt);
  try {
    penstock::deal_rows(Costs(costs), std::vector<std::int64_t>(steps), rows, ranks, penstock::Dealing::sums,
                        out);
  } catch (const std::invalid_argument&) {
    return;
  }
  CHECK(false);
}

}  // namespace

int main() {
  std::mt19937_64 random(1);
  for (const unsigned most : {0u, 1u, 3u, 300u, 65535u}) {
    for (const std::size_t ranks : {1, 2, 3, 7, 48, 49, 64, 200}) {
      for (const std::size_t rows : {0, 1, 5, 48, 49, 63, 200, 1000}) {
        for (int time = 0; time < 4; ++time) compare(random, rows, ranks, most);
      }
    }
  }
  refuse(10, 2, 4, 2, 10);
  refuse(10, 2, 5, 0, 10);
  refuse(10, 2, 5, 2, 9);
  refuse(10, 0, 5, 2, 10);
  refuse(11, 2, 5, 2, 11);
  return 0;
}
