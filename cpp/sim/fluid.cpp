#include "sim/fluid.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <queue>
#include <utility>

namespace penstock::sim {
namespace {

using Bytes = std::span<const std::int64_t>;

std::int64_t at(const Bytes& bytes, std::size_t k) { return bytes.empty() ? 0 : bytes[k]; }

std::int64_t duration(double bytes, double rate) {
  return static_cast<std::int64_t>(std::ceil(bytes / rate));
}

// Shared storage: clients have equal shares of a rate that depends on how many they are. All of
// them have been served the same number of bytes since the beginning, if idle ones are thought to
// have been; a read ends when that number has grown by its size.
class Storage {
 public:
  Storage(const FluidCluster& cluster, const FluidTraffic& traffic)
      : shares_(cluster.storage_shares),
        bytes_{traffic.ahead, traffic.demand, traffic.ring},
        nodes_(static_cast<std::size_t>(cluster.nodes)),
        steps_(traffic.need.size() / nodes_),
        opened_{steps_, 0, 0},
        readers_(nodes_),
        pending_(steps_, 0),
        finished_(traffic.need.size(), 0) {
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      for (std::size_t k = 0; k < bytes_[kind].size(); ++k) {
        pending_[k / nodes_] += bytes_[kind][k] > 0;
      }
    }
  }

  // Open steps at this time: those below `ring` may be staged, those below `demand` request the
  // rest.
  void open(std::size_t ring, std::size_t demand, std::int64_t time) {
    while (!ends_.empty() && next() <= time) complete();
    serve(time);
    opened_ = {steps_, demand, ring};
    for (std::size_t i = 0; i < nodes_; ++i) {
      if (!readers_[i].busy) begin(i);
    }
  }

  // Read on until a step has all its bytes.
  void read(std::size_t step) {
    while (pending_[step] > 0) complete();
  }

  // Time at which a node had all bytes that it reads of a step; 0 if there are none.
  std::int64_t finished(std::size_t step, std::size_t node) const {
    return finished_[step * nodes_ + node];
  }

 private:
  // Kept, demanded and staged bytes of one step, in this sequence.
  static constexpr std::size_t kKinds = 3;
  using Kinds = std::array<std::size_t, kKinds>;

  struct Reader {
    Kinds next{};          // the next step of each kind
    std::size_t step = 0;  // of the read under way
    bool busy = false;
  };
  using End = std::pair<double, std::size_t>;  // of a read, in bytes served, and its node

  double share() const { return shares_[ends_.size() - 1]; }

  std::int64_t next() const {
    return now_ + std::max<std::int64_t>(0, duration(ends_.top().first - served_, share()));
  }

  void serve(std::int64_t time) {
    if (!ends_.empty()) served_ += share() * static_cast<double>(time - now_);
    now_ = time;
  }

  void complete() {
    const double end = ends_.top().first;
    serve(next());
    served_ = std::max(served_, end);
    ready_.clear();
    while (!ends_.empty() && ends_.top().first <= served_) {
      ready_.push_back(ends_.top().second);
      ends_.pop();
    }
    for (const std::size_t node : ready_) {
      Reader& reader = readers_[node];
      reader.busy = false;
      --pending_[reader.step];
      finished_[reader.step * nodes_ + node] = now_;
    }
    if (ends_.empty()) served_ = 0;
    for (const std::size_t node : ready_) begin(node);
  }

  // The node's next read: of the earliest step.
  void begin(std::size_t node) {
    Reader& reader = readers_[node];
    std::size_t chosen = kKinds;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      if (bytes_[kind].empty()) continue;
      std::size_t& step = reader.next[kind];
      while (step < opened_[kind] && bytes_[kind][step * nodes_ + node] == 0) ++step;
      if (step == opened_[kind]) continue;
      if (chosen == kKinds || step < reader.next[chosen]) chosen = kind;
    }
    if (chosen == kKinds) return;
    reader.step = reader.next[chosen]++;
    reader.busy = true;
    const std::int64_t bytes = bytes_[chosen][reader.step * nodes_ + node];
    ends_.emplace(served_ + static_cast<double>(bytes), node);
  }

  std::span<const double> shares_;
  std::array<Bytes, kKinds> bytes_;
  std::size_t nodes_;
  std::size_t steps_;
  Kinds opened_;  // steps below these may be read
  std::int64_t now_ = 0;
  double served_ = 0;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  std::vector<std::size_t> ready_;
  std::vector<Reader> readers_;
  std::vector<std::int64_t> pending_;  // reads of each step that have not ended
  std::vector<std::int64_t> finished_;
};

// A server of each node, which takes steps in their sequence.
class Servers {
 public:
  Servers(std::size_t nodes, double rate) : free_(nodes, 0), rate_(rate) {}

  // Time at which these bytes have passed, which cannot all be there before `supplied`.
  std::int64_t pass(std::size_t node, std::int64_t bytes, std::int64_t from,
                    std::int64_t supplied) {
    const std::int64_t takes = duration(static_cast<double>(bytes), rate_);
    return free_[node] = std::max(std::max(free_[node], from) + takes, supplied);
  }

 private:
  std::vector<std::int64_t> free_;
  double rate_;
};

// For each step the last one that must be over for it to open.
std::vector<std::int64_t> openings(const FluidCluster& cluster, const FluidTraffic& traffic) {
  const auto nodes = static_cast<std::size_t>(cluster.nodes);
  const std::size_t steps = traffic.need.size() / nodes;
  std::vector<std::int64_t> after(steps);
  std::vector<std::int64_t> held(nodes, 0);
  std::int64_t last = -1;
  for (std::size_t step = 0; step < steps; ++step) {
    std::int64_t most = 0;
    const auto hold = [&](std::size_t of, std::int64_t sign) {
      most = 0;
      for (std::size_t i = 0; i < nodes; ++i) {
        held[i] += sign * traffic.need[of * nodes + i];
        most = std::max(most, held[i]);
      }
    };
    hold(step, 1);
    const auto latest = static_cast<std::int64_t>(step) - 1;
    std::int64_t least = cluster.window == 0 ? latest : cluster.setup ? 0 : -1;
    if (cluster.epoch > 0) least = std::max(least, (latest + 1) / cluster.epoch * cluster.epoch - 1);
    while (last < latest && (most > cluster.window || last < least)) {
      hold(static_cast<std::size_t>(++last), -1);
    }
    after[step] = last;
  }
  return after;
}

}  // namespace

std::vector<std::int64_t> run_fluid(const FluidCluster& cluster, const FluidTraffic& traffic) {
  const auto nodes = static_cast<std::size_t>(cluster.nodes);
  const std::size_t cells = traffic.need.size();
  const std::size_t steps = cells / nodes;
  const std::vector<std::int64_t> after = openings(cluster, traffic);
  std::vector<std::int64_t> ends;
  ends.reserve(steps);

  Storage storage(cluster, traffic);
  std::vector<Servers> tiers;
  for (const double rate : cluster.tiers) tiers.emplace_back(nodes, rate);
  Servers senders(nodes, cluster.link);
  Servers receivers(nodes, cluster.link);
  Servers stagers(nodes, cluster.stage);
  std::vector<std::int64_t> supplied(nodes);

  std::size_t opened = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    const std::int64_t before = ends.empty() ? 0 : ends.back();
    const std::size_t closed = opened;
    while (opened < steps && after[opened] < static_cast<std::int64_t>(step)) ++opened;
    if (opened > closed || !traffic.demand.empty()) storage.open(opened, step + 1, before);
    storage.read(step);

    const std::int64_t from =
        after[step] < 0 ? 0 : ends[static_cast<std::size_t>(after[step])];
    std::int64_t exchanged = 0;
    for (std::size_t i = 0; i < nodes; ++i) {
      const std::size_t cell = step * nodes + i;
      supplied[i] = storage.finished(step, i);
      for (std::size_t tier = 0; tier < tiers.size(); ++tier) {
        const std::int64_t bytes = at(traffic.tiers, tier * cells + cell);
        if (bytes > 0) supplied[i] = std::max(supplied[i], tiers[tier].pass(i, bytes, from, 0));
      }
      const std::int64_t sent = at(traffic.sent, cell);
      if (sent > 0) exchanged = std::max(exchanged, senders.pass(i, sent, from, supplied[i]));
    }
    std::int64_t end = before;
    for (std::size_t i = 0; i < nodes; ++i) {
      const std::size_t cell = step * nodes + i;
      const std::int64_t received = at(traffic.received, cell);
      std::int64_t fetched = supplied[i];
      if (received > 0) {
        fetched = std::max(fetched, receivers.pass(i, received, from, exchanged));
      }
      const std::int64_t need = traffic.need[cell];
      const std::int64_t staged = cluster.serial ? stagers.pass(i, need, std::max(from, fetched), 0)
                                                 : stagers.pass(i, need, from, fetched);
      const std::int64_t computes = duration(static_cast<double>(need), cluster.compute);
      end = std::max(end, std::max(before, staged) + cluster.overhead + computes);
    }
    ends.push_back(end);
  }
  return ends;
}

}  // namespace penstock::sim
