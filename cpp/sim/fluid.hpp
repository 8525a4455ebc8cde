// A cluster that trains step by step, as flows of bytes: what each node takes in each step from
// shared storage, from its own tiers and from other nodes, through devices that are shared.
//
// Times are whole nanoseconds, rounded up; amounts are bytes. docs/simulator.md states the model.
//
//   storage   one server for all nodes. Each node with a read under way is a client, g of them have
//             `storage_shares[g - 1]` each. A node reads step by step: what the steps within the
//             window need (`ring`), and what it keeps (`ahead`), which waits for no window.
//   tiers, both ends of a node's link, staging   each a server of one node that takes steps in their
//             sequence; bytes go on as they come, so a step ends at the slowest of what it goes
//             through, but at none before its bytes have passed at that server's rate.
//   exchange  a node that receives in a step waits for the last node that sends in it.
//   compute   a node computes a step when all nodes are done with the one before and all its bytes
//             are staged.
//   window    a step opens, for all nodes at once, when it fits into the fullest node's staging memory,
//             and, if `epoch` is given, when all earlier epochs are over.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock::sim {

struct FluidCluster {
  std::int64_t nodes;
  std::int64_t window;                     // bytes staged ahead; 0: nothing ahead of the step
  bool serial;                             // fetching, staging and computing follow each other
  bool setup;                              // the first step fills caches: nothing opens before its end
  std::int64_t overhead = 0;               // of a step beside computing, in ns
  std::int64_t epoch = 0;                  // steps of one; 0: nothing ends with an epoch
  double compute;                          // rates in bytes/ns
  double stage;
  double link;
  std::span<const double> storage_shares;  // of each client, by clients - 1
  std::span<const double> tiers;
};

// Bytes by step and node. An empty column is zero everywhere.
struct FluidTraffic {
  std::span<const std::int64_t> need = {};
  std::span<const std::int64_t> ring = {};
  std::span<const std::int64_t> demand = {};
  std::span<const std::int64_t> ahead = {};
  std::span<const std::int64_t> tiers = {};  // one after the other
  std::span<const std::int64_t> sent = {};
  std::span<const std::int64_t> received = {};
};

// Simulate the flows: the time at which all nodes are done with each step, in nanoseconds.
std::vector<std::int64_t> run_fluid(const FluidCluster& cluster, const FluidTraffic& traffic);

}  // namespace penstock::sim
