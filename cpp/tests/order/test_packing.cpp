// Packing against a plain search, and tokens laid out; what is out of bounds is refused.
#include "order/packing.hpp"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "order/token_rows.hpp"
#include "tests/support/check.hpp"

using penstock::PackingRule;
using Values = std::vector<std::int64_t>;

namespace {

std::uint64_t next(std::uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

// The space of each row, by looking at all of them; long documents are cut.
Values pack_plainly(const Values& lengths, const PackingRule& rule) {
  Values spaces;
  for (const std::int64_t tokens : lengths) {
    const std::int64_t held = std::min(tokens, rule.row_length);
    const std::int64_t taken = (held + rule.multiple - 1) / rule.multiple * rule.multiple;
    if (taken == 0) continue;
    std::int64_t* best = nullptr;
    for (std::int64_t& space : spaces)
      if (space >= taken && (best == nullptr || space < *best)) best = &space;
    if (best == nullptr) best = &spaces.emplace_back(rule.row_length);
    *best -= taken;
  }
  std::sort(spaces.begin(), spaces.end());
  return spaces;
}

void check_packing(const Values& lengths, const PackingRule& rule) {
  const auto packed = penstock::pack_documents(lengths, rule);
  CHECK(penstock::count_packed_rows(lengths, rule) == packed.offsets.size() - 1);
  Values spaces;
  for (std::size_t row = 0; row + 1 < packed.offsets.size(); ++row) {
    std::int64_t space = rule.row_length;
    for (auto at = packed.offsets[row]; at < packed.offsets[row + 1]; ++at) {
      const std::int64_t held = packed.length[static_cast<std::size_t>(at)];
      space -= (held + rule.multiple - 1) / rule.multiple * rule.multiple;
    }
    CHECK(space >= 0);
    spaces.push_back(space);
  }
  std::sort(spaces.begin(), spaces.end());
  if (!rule.split) CHECK(spaces == pack_plainly(lengths, rule));
}

template <class Error, class Act>
void check_refused(Act act) {
  bool refused = false;
  try {
    act();
  } catch (const Error&) {
    refused = true;
  }
  CHECK(refused);
}

void check_layout() {
  const std::vector<std::uint16_t> stored{11, 12, 13, 21, 22, 65535};
  const penstock::StoredTokens tokens{std::as_bytes(std::span(stored)), 2, false};
  const Values at{3, 0, 5}, lengths{2, 3, 1}, targets{0, 2, 8};
  std::vector<std::int32_t> inputs(10), labels(10), positions(10);
  CHECK(penstock::lay_out_tokens<std::int32_t>(tokens, {at, lengths, targets}, 7, false, inputs,
                                               labels, positions) == 3);
  CHECK((inputs == std::vector<std::int32_t>{21, 22, 11, 12, 13, 7, 7, 7, 65535, 7}));
  CHECK((labels ==
         std::vector<std::int32_t>{-100, 22, -100, 12, 13, -100, -100, -100, -100, -100}));
  CHECK((positions == std::vector<std::int32_t>{0, 1, 0, 1, 2, 0, 1, 2, 0, 0}));
  penstock::lay_out_tokens<std::int32_t>(tokens, {at, lengths, targets}, 7, true, inputs, labels,
                                         positions);
  CHECK((labels ==
         std::vector<std::int32_t>{22, -100, 12, 13, -100, -100, -100, -100, -100, -100}));

  const std::vector<std::uint64_t> wide{1, std::uint64_t{1} << 31, 3};
  const penstock::StoredTokens large{std::as_bytes(std::span(wide)), 8, false};
  const Values starts{0, 1, 2}, ones{1, 1, 1}, places{0, 1, 2};
  CHECK(penstock::lay_out_tokens<std::int32_t>(large, {starts, ones, places}, 0, false, inputs,
                                               labels, positions) == 1);
  const auto lay = [&](Values from, Values sizes, Values to) {
    penstock::lay_out_tokens<std::int32_t>(tokens, {from, sizes, to}, 0, false, inputs, labels,
                                           positions);
  };
  for (const Values& from : {Values{5}, Values{-1}, Values{INT64_MAX}})
    check_refused<std::out_of_range>([&] { lay(from, {2}, {0}); });
  for (const Values& to : {Values{9}, Values{-1}, Values{INT64_MAX}})
    check_refused<std::out_of_range>([&] { lay({0}, {2}, to); });
  check_refused<std::out_of_range>([&] { lay({0, 2}, {2, 2}, {0, 1}); });
  check_refused<std::out_of_range>([&] { lay({0, 2}, {2}, {0, 1}); });
  check_refused<std::out_of_range>([&] { lay({0}, {-1}, {0}); });
}

void check_places() {
  const Values offsets{0, 2, 3}, lengths{3, 4, 8};
  const auto rows = penstock::place_pieces(offsets, lengths, {8, 1, false});
  CHECK((rows.targets == Values{0, 3, 8}) && rows.places == 16 && rows.longest == 8);
  CHECK((rows.source == Values{0, 1, -1, 2}));
  CHECK((rows.starts == std::vector<std::int32_t>{0, 3, 7, 8, 16}) && rows.rooms.empty());
  const auto flat = penstock::place_pieces(offsets, lengths, {8, 1, true});
  CHECK((flat.targets == Values{0, 3, 7}) && flat.places == 15);
  const auto aligned = penstock::place_pieces(offsets, lengths, {8, 4, false});
  CHECK((aligned.targets == Values{0, 4, 8}) && (aligned.source == Values{0, 1, 2}));
  CHECK((aligned.rooms == std::vector<std::int32_t>{0, 4, 8, 16}));
  CHECK((aligned.starts == std::vector<std::int32_t>{0, 3, 7, 15}));
  const auto place = [&](Values of, Values sizes) {
    penstock::place_pieces(of, sizes, {8, 1, false});
  };
  for (const Values& wrong : {Values{}, Values{1, 1}, Values{0, 2}, Values{0, 2, 1}, Values{0, -1, 1}})
    check_refused<std::out_of_range>([&] { place(wrong, {1}); });
  for (const std::int64_t tokens : {std::int64_t{9}, std::int64_t{-1}, INT64_MAX})
    check_refused<std::out_of_range>([&] { place({0, 1}, {tokens}); });
}

}  // namespace

int main() {
  check_places();
  std::uint64_t state = 88172645463325252u;
  for (const std::int64_t length : {2, 3, 63, 64, 65, 4095, 4097, 300000}) {
    for (const std::int64_t multiple : {std::int64_t{1}, length}) {
      for (const bool split : {false, true}) {
        Values lengths(400);
        const auto most = static_cast<std::uint64_t>(next(state) % 2 == 0 ? length : 3 * length);
        for (auto& each : lengths) each = static_cast<std::int64_t>(next(state) % (most + 1));
        check_packing(lengths, {length, split, multiple});
      }
    }
  }
  check_packing({}, {8, true, 1});
  for (const PackingRule& rule : {PackingRule{1, true, 1}, PackingRule{(1 << 24) + 1, true, 1},
                                  PackingRule{8, true, 0}, PackingRule{8, true, 3}})
    check_refused<std::invalid_argument>([&] { penstock::count_packed_rows(Values{1}, rule); });
  for (const std::int64_t length : {std::int64_t{-1}, INT64_MAX, std::int64_t{1} << 62})
    check_refused<std::invalid_argument>(
        [&] { penstock::count_packed_rows(Values{length}, {8, true, 1}); });
  check_layout();
}
