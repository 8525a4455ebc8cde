// The simulators' cores on clusters small enough to reckon by hand.
#include <array>
#include <cstdint>
#include <vector>

#include "tests/support/check.hpp"
#include "sim/fluid.hpp"
#include "sim/parity.hpp"

using namespace penstock::sim;

namespace {

using Cells = std::vector<std::int64_t>;

// Two nodes, three steps of 100 bytes each; rates in bytes/ns.
struct Small {
  std::array<double, 2> shares{4, 2};
  std::array<double, 1> tiers{5};
  Cells need = Cells(6, 100);
  FluidCluster cluster{.nodes = 2,
                       .window = 1000,
                       .serial = false,
                       .setup = false,
                       .compute = 1,
                       .stage = 100,
                       .link = 10,
                       .storage_shares = shares,
                       .tiers = tiers};
};

void computing_alone() {
  const Small small;
  // The first step's bytes are staged at 1, the others' while it computes.
  CHECK((run_fluid(small.cluster, {.need = small.need}) == Cells{101, 201, 301}));
}

void steps_have_an_overhead() {
  Small small;
  small.cluster.overhead = 5;
  CHECK((run_fluid(small.cluster, {.need = small.need}) == Cells{106, 211, 316}));
}

void nothing_is_read_across_epochs() {
  Small small;
  const Cells ring{0, 0, 0, 0, 400, 0};
  CHECK((run_fluid(small.cluster, {.need = small.need, .ring = ring}) == Cells{101, 201, 301}));
  // The third step is the next epoch's first: it is read from 201 to 301.
  small.cluster.epoch = 2;
  CHECK((run_fluid(small.cluster, {.need = small.need, .ring = ring}) == Cells{101, 201, 401}));
}

void storage_is_shared_while_both_read() {
  Small small;
  small.cluster.compute = 1000;
  // Both read 100 at 2 bytes/ns until 50; then one alone reads 100 more at 4 until 75.
  const Cells ring{100, 100, 0, 100, 0, 0};
  const auto ends = run_fluid(small.cluster, {.need = small.need, .ring = ring});
  CHECK((ends == Cells{51, 76, 77}));
}

void what_is_kept_waits_for_no_window() {
  Small small;
  small.cluster.window = 0;
  const Cells reads{0, 0, 0, 0, 400, 0};
  CHECK((run_fluid(small.cluster, {.need = small.need, .ahead = reads}) == Cells{101, 202, 303}));
  // At the window's opening, 202, it takes 100 to read them, and then 100 to compute.
  CHECK((run_fluid(small.cluster, {.need = small.need, .ring = reads}) == Cells{101, 202, 402}));
  small.cluster.window = 1000;
  CHECK((run_fluid(small.cluster, {.need = small.need, .ring = reads}) == Cells{101, 201, 301}));
  CHECK((run_fluid(small.cluster, {.need = small.need, .demand = reads}) == Cells{101, 201, 401}));
}

void who_receives_waits_for_who_sends() {
  Small small;
  small.cluster.compute = 1000;
  const Cells tiers{1000, 0, 0, 0, 0, 0};
  const Cells sent{1000, 0, 0, 0, 0, 0};
  const Cells received{0, 1000, 0, 0, 0, 0};
  const auto ends = run_fluid(
      small.cluster, {.need = small.need, .tiers = tiers, .sent = sent, .received = received});
  CHECK((ends == Cells{201, 202, 203}));
}

// One node, one sample a step, of 1 MB; staged from storage at 2 MB/s, or asked for when needed.
ParityRun parity(bool ring) {
  static const std::array<double, 1> shares{2};
  static const std::array<std::int64_t, 2> bounds{0, 0};
  const ParityCluster cluster{.nodes = 1,
                              .batch = 1,
                              .compute = 1,
                              .preprocess = 1e9,
                              .link = 1,
                              .staging_capacity = 2,
                              .staging_rate = 1e9,
                              .staging_threads = 1,
                              .storage_rates = shares,
                              .class_rates = {},
                              .class_capacities = {},
                              .class_threads = {}};
  const ParityPolicy policy{.ring = ring,
                            .remote = false,
                            .storage = ring,
                            .immediate = false,
                            .start = 0,
                            .held_node = {},
                            .held_class = {},
                            .held_sample = {},
                            .held_since = {},
                            .log = {},
                            .log_bounds = bounds,
                            .lists = {}};
  static const std::array<double, 3> sizes{1, 1, 1};
  static const std::array<std::int64_t, 3> samples{2, 0, 1};
  return run_parity(cluster, policy, sizes, samples);
}

void staging_overlaps_reading_and_computing() {
  const auto near = [](double a, double b) { return a - b < 1e-6 && b - a < 1e-6; };
  const ParityRun demand = parity(false);
  CHECK(near(demand.barriers[0], 1.5) && near(demand.barriers[2], 4.5));
  CHECK(demand.reads[kStorage] == 3 && demand.reads[kStaging] == 0);
  const ParityRun staged = parity(true);
  CHECK(near(staged.barriers[0], 1.5) && near(staged.barriers[2], 3.5));
  CHECK(staged.reads[kStorage] == 3 && staged.reads[kStaging] == 2);
}

}  // namespace

int main() {
  computing_alone();
  steps_have_an_overhead();
  nothing_is_read_across_epochs();
  storage_is_shared_while_both_read();
  what_is_kept_waits_for_no_window();
  who_receives_waits_for_who_sends();
  staging_overlaps_reading_and_computing();
}
