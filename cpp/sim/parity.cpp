#include "sim/parity.hpp"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>

namespace penstock::sim {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// The window of the published test of which nodes read storage "now", in seconds.
constexpr double kWindow = 0.1;

using Log = std::vector<double>;

// True if a node counts as a client of storage at this time. The log need not be sorted; the search
// takes the steps of a bisection all the same.
bool is_active(const Log& log, double time) {
  if (log.empty() || !(log.back() > time - kWindow)) return false;
  std::size_t low = 0;
  std::size_t high = log.size();
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (log[middle] < time) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return (low < log.size() && log[low] > time - kWindow) ||
         (low + 1 < log.size() && log[low + 1] < time + kWindow);
}

struct Staged {
  std::int64_t step;
  std::int64_t place;  // within the node's part of the step
  std::int64_t sample;
  double since;
  Source source;
};

struct Held {
  int kind = -1;  // the class, -1 for none
  double since = kNever;
};

struct Node {
  std::int64_t first = 0;  // its part of each global batch
  std::int64_t last = 0;
  double clock = 0;
  std::vector<double> threads;
  // Staged entries in the sequence of the stream, with those that are left behind by a drop of
  // their step: they stay, and take up room, for good.
  std::deque<Staged> staged;
  std::int64_t stranded = 0;  // so many entries at the front are of that kind
  std::int64_t dropped = 0;   // steps before this one have been dropped
  std::int64_t step = 0;      // what is staged next
  std::int64_t place = 0;
  double staged_bytes = 0;
  std::vector<char> was_staged;
  std::vector<double> since;      // of what it holds; kNever elsewhere
  std::vector<std::int8_t> kind;  // the class that holds it, -1 for none
  Log demanded;
  Log prefetched;
  // Class prefetchers.
  std::vector<std::vector<double>> class_clocks;
  std::vector<std::int64_t> class_turn;
  std::vector<double> class_bytes;
  std::int64_t unplaced = 0;
};

class Simulation {
 public:
  Simulation(const ParityCluster& cluster, const ParityPolicy& policy,
             std::span<const double> sizes, std::span<const std::int64_t> samples)
      : cluster_(cluster),
        policy_(policy),
        sizes_(sizes),
        samples_(samples),
        steps_(static_cast<std::int64_t>(samples.size()) / cluster.batch),
        nodes_(static_cast<std::size_t>(cluster.nodes)) {
    out_.reads.assign(nodes_.size() * kSources, 0);
    out_.megabytes.assign(static_cast<std::size_t>(steps_) * kSources, 0);
    const std::int64_t part = (cluster.batch + cluster.nodes - 1) / cluster.nodes;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      const auto number = static_cast<std::int64_t>(i);
      node.first = std::min(number * part, cluster.batch);
      node.last = std::min(node.first + part, cluster.batch);
      node.clock = policy.start;
      node.threads.assign(static_cast<std::size_t>(cluster.staging_threads), 0);
      node.was_staged.assign(sizes.size(), 0);
      node.since.assign(sizes.size(), kNever);
      node.kind.assign(sizes.size(), -1);
      node.prefetched.assign(policy.log.begin() + policy.log_bounds[i],
                             policy.log.begin() + policy.log_bounds[i + 1]);
      for (const std::int64_t threads : cluster.class_threads) {
        node.class_clocks.emplace_back(static_cast<std::size_t>(threads), 0.0);
      }
      node.class_turn.assign(cluster.class_threads.size(), 0);
      node.class_bytes.assign(cluster.class_threads.size(), 0);
    }
    for (std::size_t k = 0; k < policy.held_node.size(); ++k) {
      hold(nodes_[static_cast<std::size_t>(policy.held_node[k])], policy.held_sample[k],
           policy.held_class[k], policy.held_since[k]);
    }
  }

  ParityRun run() {
    if (policy_.ring) {
      for (std::size_t i = 0; i < nodes_.size(); ++i) fill(i, 0);
    }
    for (now_ = 0; now_ < steps_; ++now_) {
      double barrier = 0;
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        Node& node = nodes_[i];
        for (std::int64_t place = 0; place < node.last - node.first; ++place) {
          const std::int64_t sample = at(node, now_, place);
          node.clock = request(place, sample, i, node.clock) + size(sample) / cluster_.compute;
        }
        barrier = std::max(barrier, node.clock);
      }
      for (Node& node : nodes_) node.clock = barrier;
      out_.barriers.push_back(barrier);
    }
    return std::move(out_);
  }

 private:
  double size(std::int64_t sample) const { return sizes_[static_cast<std::size_t>(sample)]; }

  std::int64_t at(const Node& node, std::int64_t step, std::int64_t place) const {
    return samples_[static_cast<std::size_t>(step * cluster_.batch + node.first + place)];
  }

  double rate(std::size_t kind) const { return cluster_.class_rates[kind]; }
  double remote_rate(std::size_t kind) const { return std::min(cluster_.link, rate(kind)); }
  double storage_rate(std::size_t clients) const { return cluster_.storage_rates[clients - 1]; }

  double write_seconds(double megabytes) const {
    return std::max(megabytes / cluster_.preprocess, megabytes / cluster_.staging_rate);
  }
  double read_seconds(double megabytes, double rate) const { return write_seconds(megabytes) + megabytes / rate; }

  static void hold(Node& node, std::int64_t sample, int kind, double since) {
    const auto at = static_cast<std::size_t>(sample);
    if (node.kind[at] >= 0) return;
    node.kind[at] = static_cast<std::int8_t>(kind);
    node.since[at] = since;
  }

  static Held find_held(const Node& node, std::int64_t sample) {
    const auto at = static_cast<std::size_t>(sample);
    return {node.kind[at], node.since[at]};
  }

  // The last other node that holds it by then: the published search never updates its maximum.
  Held find_held_elsewhere(std::size_t self, std::int64_t sample, double by) const {
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (i == self) continue;
      const Held found = find_held(nodes_[i], sample);
      if (found.kind >= 0 && found.since <= by) return found;
    }
    return {};
  }

  std::size_t clients(double time, std::size_t self) const {
    std::size_t found = 1;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (i == self) continue;
      found += is_active(nodes_[i].demanded, time) || is_active(nodes_[i].prefetched, time);
    }
    return found;
  }

  void count(std::size_t self, Source source) {
    ++out_.reads[self * kSources + static_cast<std::size_t>(source)];
  }

  void log_demand(std::size_t self, Source source, double time) {
    count(self, source);
    if (source == kStorage) nodes_[self].demanded.push_back(time);
  }

  void count_moved(Source source, double megabytes) {
    const auto step = static_cast<std::size_t>(std::min(now_, steps_ - 1));
    out_.megabytes[step * kSources + static_cast<std::size_t>(source)] += megabytes;
  }

  // Time at which the node has the sample that it requests now.
  double request(std::int64_t place, std::int64_t sample, std::size_t self, double time) {
    Node& node = nodes_[self];
    const Staged* entry = find(node, place);
    const bool ready = entry != nullptr && entry->since <= time;
    if (ready) log_demand(self, kStaging, time);
    const double megabytes = size(sample);

    Source best_source = kStorage;
    double best = megabytes / storage_rate(clients(time, self));
    if (const Held local = find_held(node, sample); local.kind >= 0 && local.since <= time) {
      const double fetch = megabytes / rate(static_cast<std::size_t>(local.kind));
      if (fetch < best) best = fetch, best_source = kLocal;
    }
    if (const Held remote = find_held_elsewhere(self, sample, time); remote.kind >= 0) {
      const double fetch = megabytes / remote_rate(static_cast<std::size_t>(remote.kind));
      if (fetch < best) best = fetch, best_source = kRemote;
    }

    const double limit = ready ? time : entry != nullptr ? entry->since : kNever;
    const double direct = time + best + write_seconds(megabytes);
    double response = limit;
    if (direct < limit) {
      response = direct;
      log_demand(self, best_source, time);
      count_moved(best_source, megabytes);
    } else {
      log_demand(self, entry->source, limit);
    }
    if (policy_.ring) {
      drop(node);
      fill(self, response);
    }
    return response;
  }

  const Staged* find(const Node& node, std::int64_t place) const {
    // Entries are in the sequence of the stream, without those for which there was no source.
    const auto before = [this, place](const Staged& entry, int /*unused*/) {
      return entry.step < now_ || (entry.step == now_ && entry.place < place);
    };
    const auto found = std::lower_bound(node.staged.begin() + node.stranded, node.staged.end(), 0,
                                        before);
    if (found == node.staged.end() || found->step != now_ || found->place != place) return nullptr;
    return &*found;
  }

  // Drop the entries of earlier steps. An entry that was staged after its step had been dropped
  // stays.
  void drop(Node& node) const {
    if (node.dropped == now_) return;
    auto entry = node.staged.begin() + node.stranded;
    while (entry != node.staged.end() && entry->step < node.dropped) ++entry, ++node.stranded;
    while (entry != node.staged.end() && entry->step < now_) {
      node.staged_bytes -= size(entry->sample);
      entry = node.staged.erase(entry);
    }
    node.dropped = now_;
  }

  void fill(std::size_t self, double time) {
    Node& node = nodes_[self];
    place(node);
    for (double& clock : node.threads) clock = std::max(clock, time);
    while (node.step < steps_ && node.first < node.last) {
      const std::int64_t sample = at(node, node.step, node.place);
      const double megabytes = size(sample);
      if (!(node.staged_bytes + megabytes <= cluster_.staging_capacity)) break;
      if (!stage(self, sample, megabytes)) break;
      turn_ = (turn_ + 1) % static_cast<std::size_t>(cluster_.staging_threads);
      if (++node.place == node.last - node.first) ++node.step, node.place = 0;
    }
  }

  // Stage the next sample from the fastest source. False if it must wait for another node.
  bool stage(std::size_t self, std::int64_t sample, double megabytes) {
    Node& node = nodes_[self];
    const double current = node.threads[turn_];
    if (policy_.immediate) {
      keep(node, sample, 0, kStaging);
      return true;
    }
    const Held local = find_held(node, sample);
    Source source = kLocal;
    double since = local.since;
    double fetch = kNever;
    if (local.kind >= 0) fetch = read_seconds(megabytes, rate(static_cast<std::size_t>(local.kind)));
    if (policy_.remote) {
      const Held remote = find_held_elsewhere(self, sample, kNever);
      if (remote.kind >= 0) {
        const double faster = remote_rate(static_cast<std::size_t>(remote.kind));
        if (local.kind < 0 || rate(static_cast<std::size_t>(local.kind)) < faster) {
          if (policy_.storage && remote.since > current) return false;
          source = kRemote;
          since = remote.since;
          fetch = read_seconds(megabytes, faster);
        }
      }
    }
    double done = kNever;
    if (policy_.storage) {
      const double direct = read_seconds(megabytes, storage_rate(clients(current, self)));
      if (fetch == kNever || direct < fetch || since > current) {
        source = kStorage;
        done = current + direct;
      }
    }
    if (done == kNever) {
      if (fetch == kNever) return true;  // no source: the stream goes on without it
      done = std::max(since, current) + fetch;
    }
    node.threads[turn_] = done;
    keep(node, sample, done, source);
    if (source == kStorage) node.prefetched.push_back(current);
    count_moved(source, megabytes);
    return true;
  }

  void keep(Node& node, std::int64_t sample, double since, Source source) {
    node.staged.push_back({node.step, node.place, sample, since, source});
    char& before = node.was_staged[static_cast<std::size_t>(sample)];
    if (!before) node.staged_bytes += size(sample);
    before = 1;
  }

  // Class prefetchers: the next samples of the node's list, while they fit.
  void place(Node& node) {
    const auto length = static_cast<std::int64_t>(sizes_.size());
    if (policy_.lists.empty()) return;
    const auto list = policy_.lists.subspan(
        static_cast<std::size_t>((&node - nodes_.data()) * length), sizes_.size());
    for (std::size_t kind = 0; kind < cluster_.class_threads.size(); ++kind) {
      while (node.unplaced < length - 1) {
        const std::int64_t sample = list[static_cast<std::size_t>(node.unplaced)];
        const double megabytes = size(sample);
        if (!(node.class_bytes[kind] + megabytes <= cluster_.class_capacities[kind])) break;
        double& clock = node.class_clocks[kind][static_cast<std::size_t>(node.class_turn[kind])];
        node.prefetched.push_back(clock);
        clock += read_seconds(megabytes, storage_rate(nodes_.size()));
        hold(node, sample, static_cast<int>(kind), clock);
        count_moved(kStorage, megabytes);
        node.class_bytes[kind] += megabytes;
        node.class_turn[kind] = (node.class_turn[kind] + 1) % cluster_.class_threads[kind];
        ++node.unplaced;
      }
    }
  }

  const ParityCluster& cluster_;
  const ParityPolicy& policy_;
  std::span<const double> sizes_;
  std::span<const std::int64_t> samples_;
  std::int64_t steps_;
  std::int64_t now_ = 0;
  std::size_t turn_ = 0;  // of the staging threads: one for all nodes
  std::vector<Node> nodes_;
  ParityRun out_;
};

}  // namespace

ParityRun run_parity(const ParityCluster& cluster, const ParityPolicy& policy,
                     std::span<const double> sizes, std::span<const std::int64_t> samples) {
  return Simulation(cluster, policy, sizes, samples).run();
}

}  // namespace penstock::sim
