// The simulators: conversion only.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>

#include "columns.hpp"
#include "gil.hpp"
#include "sim_parity.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> view(const Column<T>& column) {
  return {column.data(), column.shape(0)};
}

nb::object parity(std::int64_t nodes, std::int64_t batch, double compute, double preprocess,
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
  return nb::make_tuple(array<double>(std::move(run.barriers)),
                        array<std::int64_t>(std::move(run.reads)),
                        array<double>(std::move(run.megabytes)));
}

}  // namespace

void sim(nb::module_& m) {
  m.def("sim_parity", parity, nb::kw_only(), "nodes"_a, "batch"_a, "compute"_a, "preprocess"_a,
        "link"_a, "staging_capacity"_a, "staging_rate"_a, "staging_threads"_a, "storage_rates"_a,
        "class_rates"_a, "class_capacities"_a, "class_threads"_a, "ring"_a, "remote"_a,
        "storage"_a, "immediate"_a, "start"_a, "held_node"_a, "held_class"_a, "held_sample"_a,
        "held_since"_a, "log"_a, "log_bounds"_a, "lists"_a, "sizes"_a, "samples"_a,
        "The published simulator: (barriers, reads by node and source, MB by step and source).");
}

}  // namespace penstock::binding
