// The slab: slots claimed once by threads and processes, takeover, damage, bounds, memory's end.
#include "cache/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/support/check.hpp"
#include "tests/support/dataset.hpp"

using penstock::Slab;
using penstock::tests::below;
using penstock::tests::Random;
using Claim = Slab::Claim;
using Ints = std::vector<std::int64_t>;

namespace {

constexpr Slab::Identity identity{std::byte{1}, std::byte{2}};

std::shared_ptr<Slab> make(std::uint64_t slots, std::uint64_t bytes, std::uint64_t alignment = 64) {
  return Slab::create({slots, bytes, alignment, Slab::Data::inside}, identity);
}

std::shared_ptr<Slab> attached(const Slab& slab, pid_t pid = ::getpid()) {
  return Slab::attach(pid, slab.fd(), identity);
}

Claim claim(Slab& slab, std::int64_t slot) {
  Claim found{};
  slab.claim({&slot, 1}, {&found, 1});
  return found;
}

std::int64_t offset(const Slab& slab, std::int64_t slot) {
  std::int64_t found = 0;
  slab.find_offsets({&slot, 1}, {&found, 1});
  return found;
}

std::int64_t allocate(Slab& slab, std::int64_t length) {
  std::int64_t found = 0;
  slab.allocate({&length, 1}, {&found, 1});
  return found;
}

bool has_claims(Slab& slab, std::int64_t slot) {
  bool found = false;
  slab.has_claims({&slot, 1}, {&found, 1});
  return found;
}

bool publish(Slab& slab, std::int64_t slot, std::int64_t at, std::int64_t length) {
  bool done = false;
  slab.publish({&slot, 1}, {&at, 1}, {&length, 1}, {&done, 1});
  return done;
}

void abandon(Slab& slab, std::int64_t slot) { slab.abandon({&slot, 1}); }

template <class Error>
bool throws(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error&) {
    return true;
  }
  return false;
}

int result_of(pid_t child) {
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  return status;
}

void a_slot_goes_one_way() {
  const auto one = make(4, 1000);
  const auto other = attached(*one);
  CHECK(claim(*one, 2) == Claim::mine && offset(*one, 2) == -1);
  CHECK(claim(*one, 2) == Claim::busy && claim(*other, 2) == Claim::busy);
  CHECK(has_claims(*one, 2) && !has_claims(*other, 2) && !has_claims(*one, 1));
  CHECK(!publish(*other, 2, 0, 0));  // of this process, but of another claimer
  abandon(*other, 2);
  CHECK(claim(*other, 2) == Claim::busy);
  abandon(*one, 2);
  CHECK(claim(*other, 2) == Claim::mine);
  CHECK(!publish(*one, 2, 0, 0));
  const std::int64_t at = allocate(*other, 100);
  CHECK(publish(*other, 2, at, 100) && !has_claims(*other, 2) && !publish(*other, 2, at, 100));
  CHECK(claim(*one, 2) == Claim::ready && offset(*one, 2) == at);
  abandon(*other, 2);
  CHECK(claim(*one, 2) == Claim::ready);
  const Slab::Counters counters = one->counters();
  CHECK(counters.ready == 1 && counters.allocated_bytes == 128 && counters.published_bytes == 128);
}

void who_closes_gives_claims_back() {
  const auto one = make(4, 1000);
  {
    const auto other = attached(*one);
    CHECK(claim(*other, 1) == Claim::mine && claim(*one, 1) == Claim::busy);
  }
  CHECK(claim(*one, 1) == Claim::mine);
}

void room_is_given_once_and_ends() {
  const auto slab = make(1, 1000);
  CHECK(allocate(*slab, 1001) == -1 && allocate(*slab, std::numeric_limits<std::int64_t>::max()) == -1);
  CHECK(throws<std::out_of_range>([&] { allocate(*slab, -1); }));
  CHECK(allocate(*slab, 900) == 0 && allocate(*slab, 100) == -1);
  CHECK(allocate(*slab, 40) == 960);  // the last bytes, though not a multiple of the alignment
  CHECK(allocate(*slab, 1) == -1);
  CHECK(slab->counters().allocated_bytes == 1000);
  CHECK(publish(*slab, 0, 960, 40) == false && claim(*slab, 0) == Claim::mine);
  CHECK(throws<std::out_of_range>([&] { publish(*slab, 0, 960, 41); }));
  CHECK(throws<std::out_of_range>([&] { publish(*slab, 0, 1, 1); }));
  CHECK(throws<std::out_of_range>([&] { publish(*slab, 0, -64, 1); }));
  CHECK(publish(*slab, 0, 960, 40));
}

void refuses_what_lies_outside() {
  const auto slab = make(3, 128);
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t slot : {std::int64_t{3}, std::int64_t{-1}, most, -most - 1}) {
    CHECK(throws<std::out_of_range>([&] { claim(*slab, slot); }));
    CHECK(throws<std::out_of_range>([&] { (void)offset(*slab, slot); }));
    CHECK(throws<std::out_of_range>([&] { abandon(*slab, slot); }));
    CHECK(throws<std::out_of_range>([&] { publish(*slab, slot, 0, 0); }));
  }
  std::vector<std::byte> out(100);
  const auto gather = [&](std::int64_t at, std::int64_t length, std::int64_t target) {
    slab->gather({&at, 1}, {&length, 1}, {&target, 1}, out);
  };
  gather(0, 100, 0), gather(128, 0, 100), gather(28, 100, 0);
  for (const auto& [at, length, target] :
       std::vector<std::array<std::int64_t, 3>>{{29, 100, 0}, {0, 100, 1}, {-1, 1, 0}, {0, 1, -1},
                                                {0, -1, 0}, {most, most, 0}, {0, most, most},
                                                {129, 0, 0}, {0, 0, 101}, {-most, -most, -most}})
    CHECK(throws<std::out_of_range>([&] { gather(at, length, target); }));
  for (const Slab::Shape& shape : std::vector<Slab::Shape>{
           {0, 1}, {1, 1, 3}, {1, 1, 0}, {1, 1, 8192}, {1ull << 60, 1}, {1, 1ull << 60}})
    CHECK(throws<std::invalid_argument>([&] { (void)Slab::create(shape, identity); }));
}

void attaches_to_slabs_only() {
  const auto slab = make(3, 128);
  Slab::Identity other = identity;
  other[15] = std::byte{1};
  CHECK(throws<std::invalid_argument>([&] { Slab::attach(::getpid(), slab->fd(), other); }));
  int ends[2];
  CHECK(::pipe(ends) == 0);
  CHECK(throws<std::invalid_argument>([&] { Slab::attach(::getpid(), ends[0], identity); }));
  CHECK(throws<std::system_error>([&] { Slab::attach(::getpid(), 1'000'000, identity); }));
  ::close(ends[0]), ::close(ends[1]);
  // Somebody else's memfd of our name, of every length up to the header's, and with a damaged
  // header.
  const int forged = ::memfd_create("penstock-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  for (off_t size : {0, 1, 100, 4096}) {
    CHECK(::ftruncate(forged, size) == 0);
    CHECK(throws<std::invalid_argument>([&] { Slab::attach(::getpid(), forged, identity); }));
  }
  std::array<std::byte, 4096> header;
  CHECK(::pread(slab->fd(), header.data(), header.size(), 0) == 4096);
  CHECK(::pwrite(forged, header.data(), header.size(), 0) == 4096);
  struct stat info {};
  CHECK(::fstat(slab->fd(), &info) == 0 && ::ftruncate(forged, info.st_size) == 0);
  CHECK(throws<std::invalid_argument>([&] { Slab::attach(::getpid(), forged, identity); }));  // no seals
  CHECK(::fcntl(forged, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  CHECK(Slab::attach(::getpid(), forged, identity)->shape().slots == 3);
  for (off_t at = 0; at < 72; ++at) {  // what a header says, byte by byte
    const std::byte good = header[static_cast<std::size_t>(at)];
    const std::byte bad = good ^ std::byte{0x40};
    CHECK(::pwrite(forged, &bad, 1, at) == 1);
    bool refused = throws<std::invalid_argument>([&] {
      const auto found = Slab::attach(::getpid(), forged, identity);
      // A number that fits as well changes nothing that could be read outside.
      CHECK(found->data().size() == found->shape().data_bytes || found->data().empty());
    });
    CHECK(refused || (at >= 32 && at < 64));
    CHECK(::pwrite(forged, &good, 1, at) == 1);
  }
  CHECK(::ftruncate(slab->fd(), 0) != 0);  // nobody can take the memory from under the others
  ::close(forged);
}

void a_damaged_table_stays_inside() {
  constexpr std::int64_t slots = 512;
  const auto slab = make(slots, 4096);
  auto* table = static_cast<std::uint64_t*>(
      ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, slab->fd(), 0)) + 512;
  Random random(1);
  Ints all(slots);
  std::iota(all.begin(), all.end(), 0);
  std::vector<Claim> codes(slots);
  Ints at(slots), lengths(slots, 64), targets(slots, 0);
  std::vector<std::byte> out(64);
  for (int round = 0; round < 100; ++round) {
    for (std::int64_t i = 0; i < slots; ++i)
      table[i] = random() >> (random() % 64);
    slab->find_offsets(all, at);
    for (std::size_t i = 0; i < at.size(); ++i) {
      CHECK(at[i] >= -1 && at[i] <= 4096);
      const bool fits = at[i] >= 0 && at[i] + lengths[i] <= 4096;
      const bool refused = throws<std::out_of_range>([&] {
        slab->gather({&at[i], 1}, {&lengths[i], 1}, {&targets[i], 1}, out);
      });
      CHECK(refused != fits);
    }
    slab->claim(all, codes);
    slab->abandon(all);
  }
  ::munmap(table - 512, 8192);
}

// Threads with two claimers fill all slots; each is published once, with what belongs in it.
void many_threads() {
  constexpr std::int64_t slots = 2000, length = 48;
  const auto one = make(slots, slots * 64);
  const std::array claimers{one, attached(*one)};
  std::vector<std::atomic<int>> published(slots);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      Random random(t);
      Slab& slab = *claimers[t % 2];
      Ints order(slots);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      Ints wanted = order;
      while (!wanted.empty()) {
        Ints later;
        for (std::size_t from = 0; from < wanted.size(); from += 16) {
          const Ints batch(wanted.begin() + static_cast<std::ptrdiff_t>(from),
                           wanted.begin() + static_cast<std::ptrdiff_t>(std::min(from + 16, wanted.size())));
          std::vector<Claim> codes(batch.size());
          slab.claim(batch, codes);
          for (std::size_t i = 0; i < batch.size(); ++i) {
            if (codes[i] == Claim::ready) {
              const std::int64_t at = offset(slab, batch[i]), target = 0, bytes = length;
              std::array<std::int64_t, length / 8> read;
              slab.gather({&at, 1}, {&bytes, 1}, {&target, 1}, std::as_writable_bytes(std::span(read)));
              for (const std::int64_t word : read) CHECK(word == batch[i]);
              continue;
            }
            later.push_back(batch[i]);
            if (codes[i] != Claim::mine) continue;
            if (below(random, 4) == 0) {
              abandon(slab, batch[i]);
              continue;
            }
            const std::int64_t at = allocate(slab, length);
            CHECK(at >= 0);  // abandoned before allocating: there is room for each slot once
            std::array<std::int64_t, length / 8> write;
            write.fill(batch[i]);
            std::memcpy(slab.data().data() + at, write.data(), length);
            CHECK(publish(slab, batch[i], at, length));
            ++published[static_cast<std::size_t>(batch[i])];
          }
        }
        wanted = std::move(later);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : published) CHECK(count == 1);
  const Slab::Counters counters = one->counters();
  CHECK(counters.ready == slots && counters.taken_over == 0);
  CHECK(counters.allocated_bytes == counters.published_bytes);
}

// A claimer that ended is taken over from at once: as a zombie, and when its pid is free.
void the_dead_claim_nothing() {
  const auto slab = make(8, 4096);
  const pid_t child = ::fork();
  if (child == 0) {
    bool refused = throws<std::logic_error>([&] { claim(*slab, 0); });  // the parent's
    const auto own = attached(*slab, ::getppid());
    CHECK(refused && claim(*own, 0) == Claim::mine && claim(*own, 1) == Claim::mine);
    CHECK(allocate(*own, 1000) == 0);
    ::_exit(7);
  }
  siginfo_t info {};
  CHECK(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK(info.si_status == 7 && claim(*slab, 0) == Claim::mine);
  result_of(child);
  CHECK(claim(*slab, 1) == Claim::mine && slab->counters().taken_over == 2);
  // Memory of a dead process is not given out again: a read of it may still be under way.
  CHECK(allocate(*slab, 1000) == 1024 && publish(*slab, 0, 1024, 1000));
  CHECK(slab->counters().allocated_bytes - slab->counters().published_bytes == 1024);
}

// A living process with the pid of a dead claimer is another one: when it began is part of a claim.
// And who is taken for dead by mistake, here by a changed word, has lost the slot and harms nobody.
void a_pid_used_again_is_another_process() {
  const auto slab = make(1, 64);
  int tell[2], go[2];
  CHECK(::pipe(tell) == 0 && ::pipe(go) == 0);
  char byte = 0;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto own = attached(*slab, ::getppid());
    CHECK(claim(*own, 0) == Claim::mine);
    CHECK(::write(tell[1], "x", 1) == 1 && ::read(go[0], &byte, 1) == 1);
    const bool lost = !publish(*own, 0, 0, 0);
    abandon(*own, 0);
    ::_exit(lost ? 0 : 1);
  }
  CHECK(::read(tell[0], &byte, 1) == 1 && claim(*slab, 0) == Claim::busy);
  auto* table = static_cast<std::uint64_t*>(
      ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, slab->fd(), 0)) + 512;
  table[0] -= 1u << 2;  // began one tick earlier
  ::munmap(table - 512, 8192);
  CHECK(claim(*slab, 0) == Claim::mine);
  CHECK(::write(go[1], "x", 1) == 1 && result_of(child) == 0);
  CHECK(publish(*slab, 0, 0, 0) && slab->counters().taken_over == 1);
  for (const int each : {tell[0], tell[1], go[0], go[1]}) ::close(each);
}

void damaged_slots_are_dropped_once() {
  const auto slab = Slab::create({2, 1u << 20, 64, Slab::Data::outside}, identity);
  CHECK(slab->data().empty());
  CHECK(claim(*slab, 0) == Claim::mine && allocate(*slab, 100) == 0 && publish(*slab, 0, 0, 100));
  const auto drop = [&](std::int64_t slot, std::int64_t at) { slab->drop({&slot, 1}, {&at, 1}); };
  drop(0, 64), drop(1, 0);  // not what lies there, and not ready
  CHECK(slab->counters().dropped == 0 && claim(*slab, 0) == Claim::ready);
  drop(0, 0), drop(0, 0);
  CHECK(slab->counters().dropped == 1 && slab->counters().ready == 0);
  CHECK(claim(*slab, 0) == Claim::mine && allocate(*slab, 100) == 128);
}

void memory_outlives_its_creator() {
  int tell[2], go[2];
  CHECK(::pipe(tell) == 0 && ::pipe(go) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto slab = make(1, 4096);
    const int fd = slab->fd();
    slab->data()[5] = std::byte{42};
    CHECK(::write(tell[1], &fd, sizeof fd) == sizeof fd);
    char byte;
    CHECK(::read(go[0], &byte, 1) == 1);
    ::kill(::getpid(), SIGKILL);
  }
  int fd = -1;
  CHECK(::read(tell[0], &fd, sizeof fd) == sizeof fd);
  const auto slab = Slab::attach(child, fd, identity);
  CHECK(::write(go[1], "x", 1) == 1);
  CHECK(WIFSIGNALED(result_of(child)));
  CHECK(slab->data()[5] == std::byte{42} && attached(*slab)->data()[5] == std::byte{42});
  slab->populate();
  for (const int each : {tell[0], tell[1], go[0], go[1]}) ::close(each);
}

}  // namespace

int main() {
  a_slot_goes_one_way();
  who_closes_gives_claims_back();
  room_is_given_once_and_ends();
  refuses_what_lies_outside();
  attaches_to_slabs_only();
  a_damaged_table_stays_inside();
  the_dead_claim_nothing();
  a_pid_used_again_is_another_process();
  damaged_slots_are_dropped_once();
  memory_outlives_its_creator();
  many_threads();
}
