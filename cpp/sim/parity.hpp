// The published simulator of clairvoyant prefetching, access by access, with its faults.
//
// Times are seconds and sizes MB, as doubles, in the sequence of operations of the original: run
// times agree with it to the last bit. docs/simulator.md lists the rules and those that are
// faults; fluid.hpp is the model without them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock::sim {

// Source of a byte, as the read logs count it.
enum Source : int { kStaging = 0, kStorage = 1, kLocal = 2, kRemote = 3, kSources = 4 };

struct ParityCluster {
  std::int64_t nodes;
  std::int64_t batch;                     // samples of a global batch
  double compute;                         // MB/s of a node
  double preprocess;                      // MB/s of a thread
  double link;                            // MB/s between nodes
  double staging_capacity;                // MB
  double staging_rate;                    // MB/s of one of its threads
  std::int64_t staging_threads;
  std::span<const double> storage_rates;  // MB/s of each client, by clients - 1
  std::span<const double> class_rates;    // MB/s of each storage class
  std::span<const double> class_capacities;
  std::span<const std::int64_t> class_threads;
};

struct ParityPolicy {
  bool ring;         // a staging buffer is filled ahead
  bool remote;       // ... from other nodes
  bool storage;      // ... from shared storage
  bool immediate;    // ... and whatever it holds is there from time 0 on: the lower bound
  double start;      // time at which clocks start
  // Samples that nodes hold in a storage class, in any sequence; a sample once a node.
  std::span<const std::int32_t> held_node;
  std::span<const std::int32_t> held_class;
  std::span<const std::int64_t> held_sample;
  std::span<const double> held_since;
  // Reads of shared storage before the start, of each node, one after the other.
  std::span<const double> log;
  std::span<const std::int64_t> log_bounds;  // nodes + 1
  // Samples that each node's class prefetchers read: one list a node, all of one length; or
  // nothing.
  std::span<const std::int64_t> lists;
};

struct ParityRun {
  std::vector<double> barriers;        // the end of each step
  std::vector<std::int64_t> reads;     // by node and source, as the published logs count them
  std::vector<double> megabytes;       // moved, by source and by the step in which it was requested
};

// Run the simulator. samples: those of each global batch, step by step; a node has one stretch of
// each.
ParityRun run_parity(const ParityCluster& cluster, const ParityPolicy& policy,
                     std::span<const double> sizes, std::span<const std::int64_t> samples);

}  // namespace penstock::sim
