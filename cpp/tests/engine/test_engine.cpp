// The engine under load from several threads, every byte compared with what was written.
//
// A ring's bytes are written by the kernel, which the thread sanitizer does not see: what it checks
// here is all the rest, and that destinations are handed over by the engine's own synchronisation.
#include "engine/engine.hpp"

#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/support/check.hpp"
#include "tests/support/dataset.hpp"

using namespace penstock;
using namespace penstock::tests;
using namespace std::chrono_literals;

namespace {

constexpr auto patience = 60s;
constexpr Backend backends[] = {Backend::pread, Backend::io_uring, Backend::mmap};

std::vector<Bytes> some_contents(Random& random) {
  std::vector<Bytes> contents;
  for (const std::size_t size : {0u, 1u, 4095u, 70'000u, 1u << 20, 3'000'001u}) {
    contents.push_back(random_bytes(random, size));
  }
  return contents;
}

// Random runs with their destinations, and the verdict on them.
class Reading {
 public:
  Reading(const Dataset& data, Random& random, std::size_t runs_max = 40) : data_(data) {
    const std::int64_t runs = below(random, static_cast<std::int64_t>(runs_max) + 1);
    bounds_.push_back(0);
    for (std::int64_t run = 0; run < runs; ++run) add_run(random);
    std::int64_t bytes = 64;
    for (Extent& extent : extents_) {
      targets_.push_back(bytes);
      bytes += extent.length + below(random, 3);
    }
    memory_.assign(static_cast<std::size_t>(bytes), std::byte{0xA5});
    for (std::size_t i = 0; i < extents_.size(); ++i) extents_[i].target = &memory_[offset(i)];
  }

  std::uint64_t submit(Engine& engine) const { return engine.submit(extents_, bounds_); }

  void check(const Completion& done) const {
    std::vector<const Failure*> failures(extents_.size());
    for (const Failure& failure : done.failures) {
      CHECK(failures[failure.extent] == nullptr);
      failures[failure.extent] = &failure;
    }
    for (std::size_t i = 0; i < extents_.size(); ++i) {
      const Extent& extent = extents_[i];
      const Bytes& content = data_.content(extent.file);
      const auto size = static_cast<std::int64_t>(content.size());
      const std::int64_t there = std::clamp<std::int64_t>(size - extent.offset, 0, extent.length);
      CHECK((failures[i] != nullptr) == (there < extent.length));
      if (failures[i] != nullptr) CHECK(failures[i]->error == 0 && failures[i]->got == there);
      CHECK(there == 0 || std::memcmp(extent.target, content.data() + extent.offset,
                                      static_cast<std::size_t>(there)) == 0);
      const bool gap = i == 0 || targets_[i] > targets_[i - 1] + extents_[i - 1].length;
      CHECK(!gap || memory_[offset(i) - 1] == std::byte{0xA5});
    }
  }

 private:
  std::size_t offset(std::size_t i) const { return static_cast<std::size_t>(targets_[i]); }

  void add_run(Random& random) {
    const auto file = static_cast<std::uint32_t>(random() % data_.count());
    const auto size = static_cast<std::int64_t>(data_.content(file).size());
    std::int64_t at = below(random, size + 100);
    const std::int64_t count = below(random, 4) == 0 ? 1 + below(random, 20) : 1;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t length = below(random, 50) == 0 ? below(random, size + 1)  // up to 3 MB
                                                         : below(random, 5000);
      if (i > 0 && at + length > size + 100) break;
      extents_.push_back({at, length, nullptr, file});
      at += length + below(random, 2) * below(random, 3000);
    }
    bounds_.push_back(extents_.size());
  }

  const Dataset& data_;
  std::vector<Extent> extents_;
  std::vector<std::size_t> bounds_;
  std::vector<std::int64_t> targets_;
  Bytes memory_;
};

// Submits and polls, with some tickets in flight, until `count` have been checked.
void drive(Engine& engine, const Dataset& data, Random& random, int count) {
  std::unordered_map<std::uint64_t, std::unique_ptr<Reading>> open;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (int submitted = 0, done = 0; done < count;) {
    CHECK(std::chrono::steady_clock::now() < deadline);
    if (submitted < count && open.size() < 8) {
      auto reading = std::make_unique<Reading>(data, random);
      const std::uint64_t id = reading->submit(engine);
      CHECK(open.emplace(id, std::move(reading)).second);
      ++submitted;
      continue;
    }
    for (const Completion& ticket : engine.poll(1s)) {
      open.at(ticket.id)->check(ticket);
      CHECK(open.erase(ticket.id) == 1);
      ++done;
    }
  }
  CHECK(engine.poll(0ns).empty());
}

void random_extents(const Dataset& data, Random& random) {
  for (const Backend backend : backends) {
    for (const Access access : {Access::buffered, Access::direct}) {
      for (const std::size_t keep_max : {std::size_t{0}, std::size_t{100}}) {
        for (const std::size_t threads : {1u, 4u}) {
          Engine engine(data.columns(), keep_max, backend, access, threads);
          drive(engine, data, random, 40);
        }
      }
    }
  }
}

// One thread reads while another turns every knob.
void knobs_while_reading(const Dataset& data, Random& random) {
  Engine engine(data.columns(), 100, Backend::pread, Access::buffered, 2);
  std::atomic<bool> stop = false;
  std::thread turner([&] {
    Random own(7);
    while (!stop) {
      engine.set_threads(1 + own() % 5);
      engine.set_backend(backends[own() % 3], own() % 2 == 0 ? Access::direct : Access::buffered);
      engine.throttle(own() % 3 == 0 ? 5e7 + static_cast<double>(own() % 1'000'000'000) : 0.0);
      CHECK(engine.counters().tickets <= 600);
      CHECK(!engine.is_closed());
      std::this_thread::yield();
    }
  });
  drive(engine, data, random, 600);
  stop = true;
  turner.join();
}

// Surplus and pacing threads hand on what they were woken for.
void resize_at_a_rate(const Dataset& data, Random& random) {
  Engine engine(data.columns(), 100, Backend::pread, Access::buffered, 4);
  engine.throttle(1e8);
  std::atomic<bool> stop = false;
  std::thread turner([&] {
    for (std::size_t i = 0; !stop; ++i) {
      engine.set_threads(1 + i % 6);
      std::this_thread::yield();
    }
  });
  drive(engine, data, random, 120);
  stop = true;
  turner.join();
}

void close_in_flight(const Dataset& data, Random& random) {
  for (int round = 0; round < 30; ++round) {
    std::vector<std::unique_ptr<Reading>> readings;
    Engine engine(data.columns(), 100, backends[round % 3], Access::buffered, 3);
    if (round % 2 == 1) engine.throttle(1000);  // most has not started, and never shall
    for (int i = 0; i < 10; ++i) {
      readings.push_back(std::make_unique<Reading>(data, random));
      readings.back()->submit(engine);
    }
    std::thread poller([&] { engine.poll(30s); });  // ends when the engine closes
    std::thread other([&] { engine.close(); });
    engine.close();
    readings.clear();  // nothing writes here any more, whoever closed
    poller.join();
    other.join();
    CHECK(engine.is_closed());
    CHECK(engine.poll(30s).empty());
  }
}

// A file is cut and grown under the readers' maps: bytes that arrive are right, and no signal.
void truncation(Random& random) {
  for (const Backend backend : backends) {
    const Dataset data({random_bytes(random, 1 << 20)});
    Engine engine(data.columns(), 100, backend, Access::buffered, 4);
    std::atomic<bool> stop = false;
    std::thread cutter([&] {
      for (off_t size = 0; !stop; size = (size + 123'457) % (1 << 20)) {
        CHECK(::truncate(data.path(0).c_str(), size) == 0);
        std::this_thread::yield();
      }
    });
    for (int round = 0; round < 100; ++round) {
      Bytes memory(200 * 4096);
      std::vector<Extent> extents;
      std::vector<std::size_t> runs{0};
      for (std::size_t i = 0; i < 200; ++i) {
        extents.push_back({below(random, (1 << 20) - 4096), 4096, &memory[4096 * i], 0});
        runs.push_back(i + 1);
      }
      engine.submit(extents, runs);
      const auto done = engine.poll(patience);
      CHECK(done.size() == 1);
      std::vector<bool> failed(extents.size());
      for (const Failure& failure : done[0].failures) {
        CHECK(failure.error == ESTALE || (failure.error == 0 && failure.got < 4096));
        failed[failure.extent] = true;
      }
      for (std::size_t i = 0; i < extents.size(); ++i) {
        const std::byte* wanted = data.content(0).data() + extents[i].offset;
        if (failed[i]) continue;
        // A map is checked after the copy. What a read delivers was in the file at that time:
        // where it has grown again, zeros.
        if (backend == Backend::mmap) CHECK(std::memcmp(extents[i].target, wanted, 4096) == 0);
        for (std::size_t j = 0; j < 4096; ++j) {
          CHECK(extents[i].target[j] == wanted[j] || extents[i].target[j] == std::byte{0});
        }
      }
    }
    stop = true;
    cutter.join();
  }
}

// A file that is not as indexed is refused, by each backend.
void changed_files(Random& random) {
  for (const Backend backend : backends) {
    const Dataset data({random_bytes(random, 5000), random_bytes(random, 5000)});
    data.write(0, random_bytes(random, 4999));
    ::unlink(data.path(1).c_str());
    Engine engine(data.columns(), 100, backend, Access::buffered, 1);
    Bytes memory(200);
    engine.submit({{0, 100, memory.data(), 0}, {0, 100, memory.data() + 100, 1}}, {0, 1, 2});
    const auto done = engine.poll(patience);
    CHECK(done.size() == 1 && done[0].failures.size() == 2);
    for (const Failure& failure : done[0].failures) {
      CHECK(failure.error == (failure.extent == 0 ? ESTALE : ENOENT) && failure.got == 0);
    }
  }
}

// The rate holds over threads, and a raised one is felt by who waits already.
void rates(const Dataset& data) {
  Bytes memory(3'000'000);
  std::vector<Extent> extents;
  std::vector<std::size_t> runs{0};
  for (std::size_t i = 0; i < 50; ++i) {
    extents.push_back({static_cast<std::int64_t>(60'000 * i), 60'000, &memory[60'000 * i], 5});
    runs.push_back(i + 1);
  }
  Engine engine(data.columns(), 100, Backend::pread, Access::buffered, 3);
  engine.throttle(2e7);
  const auto start = std::chrono::steady_clock::now();
  engine.submit(extents, runs);
  CHECK(engine.poll(patience).size() == 1);
  // 3 MB at 20 MB/s, less what one chunk and the credit may run ahead.
  CHECK(std::chrono::steady_clock::now() - start > 110ms);
  engine.throttle(1e-300);
  engine.submit(extents, runs);
  CHECK(engine.poll(1ms).empty());
  engine.throttle(0);
  CHECK(engine.poll(patience).size() == 1);
}

void timeouts(const Dataset& data) {
  Engine engine(data.columns(), 100, Backend::pread, Access::buffered, 1);
  engine.throttle(1e-9);
  Bytes memory(500'000);
  engine.submit({{0, 300'000, memory.data(), 5}}, {0, 1});
  CHECK(engine.poll(patience).size() == 1);  // on credit
  engine.submit({{0, 300'000, memory.data(), 5}}, {0, 1});
  CHECK(engine.poll(std::chrono::nanoseconds::min()).empty());
  CHECK(engine.poll(-1ns).empty());
  std::thread release([&] { engine.throttle(0); });
  CHECK(engine.poll(std::chrono::nanoseconds::max()).size() == 1);
  release.join();
}

// Tickets are read by turn: the time of submission plus patience; equal turns as they came. A
// thread that owes the rate for what it has read lets all of it be submitted first.
void turns(const Dataset& data, Random& random) {
  constexpr std::chrono::nanoseconds patiences[] = {0s, 1000s, 2000s, 3000s};
  for (int round = 0; round < 20; ++round) {
    Engine engine(data.columns(), 100, Backend::pread, Access::buffered, 1);
    engine.throttle(1e-9);
    Bytes memory(1000);
    engine.submit({{0, 1, memory.data(), 5}}, {0, 1});
    CHECK(engine.poll(patience).size() == 1);  // on credit
    std::vector<std::pair<std::chrono::nanoseconds, std::uint64_t>> wanted;
    for (std::size_t i = 0; i < 40; ++i) {
      const auto waits = patiences[below(random, 4)];
      wanted.emplace_back(waits, engine.submit({{0, 10, &memory[10 * i], 5}}, {0, 1}, waits));
    }
    std::stable_sort(wanted.begin(), wanted.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    engine.throttle(0);
    std::vector<std::uint64_t> found;
    while (found.size() < wanted.size()) {
      for (const Completion& done : engine.poll(patience)) found.push_back(done.id);
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(found[i] == wanted[i].second);
  }
}

// A ticket that has been begun is gone on with once what is more urgent is read.
void urgent_between_chunks(const Dataset& data) {
  Engine engine(data.columns(), 100, Backend::pread, Access::buffered, 1);
  engine.throttle(1e-9);
  Bytes memory(3'000'000);
  std::vector<Extent> extents;
  std::vector<std::size_t> runs{0};
  for (std::size_t i = 0; i < 3; ++i) {  // a chunk each
    const std::size_t at = 1'000'000 * i;
    extents.push_back({static_cast<std::int64_t>(at), 1'000'000, &memory[at], 5});
    runs.push_back(i + 1);
  }
  const std::uint64_t sweep = engine.submit(extents, runs, 1000s);
  CHECK(engine.poll(1ms).empty());
  const std::uint64_t demand = engine.submit({{0, 1, memory.data(), 4}}, {0, 1});
  engine.throttle(0);
  const auto first = engine.poll(patience);
  CHECK(!first.empty() && first[0].id == demand);
  CHECK(first.size() == 2 || engine.poll(patience).at(0).id == sweep);
}

// Many submit and poll at once, each ticket of another patience.
void turns_from_threads(const Dataset& data) {
  Engine engine(data.columns(), 100, Backend::pread, Access::buffered, 3);
  std::atomic<int> found = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      Random own(static_cast<std::uint64_t>(thread));
      Bytes memory(400 * 100);
      for (std::size_t i = 0; i < 400; ++i) {
        engine.submit({{0, 100, &memory[100 * i], 5}}, {0, 1}, 1us * below(own, 50));
        found += static_cast<int>(engine.poll(0ns).size());
      }
      while (found < 3 * 400) found += static_cast<int>(engine.poll(1ms).size());
    });
  }
  for (std::thread& each : threads) each.join();
  CHECK(found == 3 * 400);
}

void leaks_no_descriptors(const Dataset& data, Random& random) {
  const auto open = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open();
  for (int round = 0; round < 20; ++round) {
    Engine engine(data.columns(), 100 * (round % 2), backends[round % 3],
                  round % 4 < 2 ? Access::direct : Access::buffered, 2);
    drive(engine, data, random, 3);
  }
  CHECK(open() == before);
}

// Engines that want more files open than the process may have close each other's idle ones.
void shares_descriptors(Random& random) {
  std::vector<Bytes> contents;
  for (int i = 0; i < 60; ++i) contents.push_back(random_bytes(random, 1 + random() % 9000));
  const Dataset data(std::move(contents));
  rlimit before {};
  CHECK(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{80, before.rlim_max};
  CHECK(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  {
    std::vector<std::unique_ptr<Engine>> engines;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 6; ++i) {
      const Access access = i < 3 ? Access::buffered : Access::direct;
      engines.push_back(std::make_unique<Engine>(data.columns(), 100, backends[i % 3], access, 2));
    }
    for (const auto& engine : engines) {
      threads.emplace_back([&engine, &data, seed = random()] {
        Random own(seed);
        drive(*engine, data, own, 60);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

}  // namespace

int main() {
  Random random(20261107);
  const Dataset data(some_contents(random));
  random_extents(data, random);
  knobs_while_reading(data, random);
  resize_at_a_rate(data, random);
  close_in_flight(data, random);
  truncation(random);
  changed_files(random);
  rates(data);
  timeouts(data);
  turns(data, random);
  urgent_between_chunks(data);
  turns_from_threads(data);
  leaks_no_descriptors(data, random);
  shares_descriptors(random);
}
