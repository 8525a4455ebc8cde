// The module `penstock_sim._kernels`: the kernels of the simulators.
#include <nanobind/nanobind.h>

#include <span>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"
#include "sim/fluid.hpp"
#include "sim/parity.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

using ParityColumns =
    Tuple<OwnedArray<double>, OwnedArray<std::int64_t>, OwnedArray<double>>;

ParityColumns run_parity(std::int64_t nodes, std::int64_t batch, double compute, double preprocess,
                  double link, double staging_capacity, double staging_rate,
                  std::int64_t staging_threads, const Column<double>& storage_rates,
                  const Column<double>& class_rates, const Column<double>& class_capacities,
                  const Column<std::int64_t>& class_threads, bool ring, bool remote, bool storage,
                  bool immediate, double start, const Column<std::int32_t>& held_node,
                  const Column<std::int32_t>& held_class, const Column<std::int64_t>& held_sample,
                  const Column<double>& held_since, const Column<double>& log,
                  const Column<std::int64_t>& log_bounds, const Column<std::int64_t>& lists,
                  const Column<double>& sizes, const Column<std::int64_t>& samples) {
  const sim::ParityCluster cluster{
      nodes,           batch,           compute,
      preprocess,      link,            staging_capacity,
      staging_rate,    staging_threads, view(storage_rates),
      view(class_rates), view(class_capacities), view(class_threads)};
  const sim::ParityPolicy policy{ring,
                                 remote,
                                 storage,
                                 immediate,
                                 start,
                                 view(held_node),
                                 view(held_class),
                                 view(held_sample),
                                 view(held_since),
                                 view(log),
                                 view(log_bounds),
                                 view(lists)};
  sim::ParityRun run;
  {
    const WithoutGil released;
    run = sim::run_parity(cluster, policy, view(sizes), view(samples));
  }
  return nb::make_tuple(make_array<double>(std::move(run.barriers)),
                        make_array<std::int64_t>(std::move(run.reads)),
                        make_array<double>(std::move(run.megabytes)));
}

OwnedArray<std::int64_t> run_fluid(std::int64_t nodes, std::int64_t window, bool serial,
                 bool setup, std::int64_t overhead, std::int64_t epoch, double compute,
                 double stage, double link, const Column<double>& storage_shares,
                 const Column<double>& tier_rates, const Column<std::int64_t>& need,
                 const Column<std::int64_t>& ring, const Column<std::int64_t>& demand,
                 const Column<std::int64_t>& ahead, const Column<std::int64_t>& tiers,
                 const Column<std::int64_t>& sent, const Column<std::int64_t>& received) {
  const sim::FluidCluster cluster{.nodes = nodes,
                                  .window = window,
                                  .serial = serial,
                                  .setup = setup,
                                  .overhead = overhead,
                                  .epoch = epoch,
                                  .compute = compute,
                                  .stage = stage,
                                  .link = link,
                                  .storage_shares = view(storage_shares),
                                  .tiers = view(tier_rates)};
  const sim::FluidTraffic traffic{view(need),  view(ring), view(demand),
                                  view(ahead), view(tiers), view(sent), view(received)};
  std::vector<std::int64_t> ends;
  {
    const WithoutGil released;
    ends = sim::run_fluid(cluster, traffic);
  }
  return make_array<std::int64_t>(std::move(ends));
}

}  // namespace
}  // namespace penstock::binding

NB_MODULE(_kernels, m) {
  using namespace penstock::binding;
  m.doc() = "The kernels of the simulators, in C++.";
  m.def("run_parity", run_parity, nb::kw_only(), "nodes"_a, "batch"_a, "compute"_a, "preprocess"_a,
        "link"_a, "staging_capacity"_a, "staging_rate"_a, "staging_threads"_a, "storage_rates"_a,
        "class_rates"_a, "class_capacities"_a, "class_threads"_a, "ring"_a, "remote"_a,
        "storage"_a, "immediate"_a, "start"_a, "held_node"_a, "held_class"_a, "held_sample"_a,
        "held_since"_a, "log"_a, "log_bounds"_a, "lists"_a, "sizes"_a, "samples"_a,
        "Run the published simulator: (barriers, reads by node and source, MB by step and source).");
  m.def("run_fluid", run_fluid, nb::kw_only(), "nodes"_a, "window"_a, "serial"_a, "setup"_a,
        "overhead"_a, "epoch"_a, "compute"_a, "stage"_a, "link"_a, "storage_shares"_a,
        "tier_rates"_a, "need"_a, "ring"_a, "demand"_a, "ahead"_a, "tiers"_a, "sent"_a,
        "received"_a,
        "Simulate flows of bytes by step and node: the time at which each step ends, in ns. Rates are\n"
        "in bytes/ns.");
}
