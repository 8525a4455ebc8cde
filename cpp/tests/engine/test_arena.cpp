// The arena: recycling, alignment, bounds, threads, and a forked child.
#include "engine/arena.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/check.hpp"
#include "tests/support/dataset.hpp"

using penstock::Arena;
using penstock::Block;

namespace {

constexpr std::size_t mib = 1u << 20;

void recycles() {
  const auto arena = std::make_shared<Arena>(64 * mib);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, 5 * mib}) {
    const std::byte* first = arena->take(size).data();
    for (int i = 0; i < 10; ++i) CHECK(arena->take(size).data() == first);
    CHECK(arena->lent_bytes() == 0);
  }
  // A batch of ragged size finds a block that is somewhat larger, but not one of many times that.
  const std::byte* large = arena->take(20 * mib).data();
  CHECK(arena->take(19 * mib).data() == large);
  CHECK(arena->take(mib / 2).data() != large);
}

void prepares() {
  const auto arena = std::make_shared<Arena>(64 * mib);
  CHECK(arena->prepare(20 * mib, 2) == 2);
  CHECK(arena->kept_bytes() == 40 * mib);
  CHECK(arena->prepare(20 * mib, 9) == 1);  // as many as the bound has room for
  const Block lent = arena->take(20 * mib);
  CHECK(arena->kept_bytes() == 40 * mib);  // none was made anew
  CHECK(arena->prepare(20 * mib, 1) == 0);
  CHECK(arena->prepare(SIZE_MAX, 1) == 0);
  arena->set_bytes_max(mib);
  CHECK(arena->kept_bytes() == 0);
  CHECK(arena->prepare(mib, 1) == 0);  // what is lent has all of it
}

void aligned() {
  const auto arena = std::make_shared<Arena>(0);
  for (const std::size_t size : {std::size_t{1}, std::size_t{4097}, mib, 2 * mib, 7 * mib + 1}) {
    const Block block = arena->take(size);
    const auto address = reinterpret_cast<std::uintptr_t>(block.data());
    CHECK(block.capacity() >= size && address % (size >= 2 * mib ? 2 * mib : 4096) == 0);
    std::memset(block.data(), 1, size);
  }
  CHECK(arena->kept_bytes() == 0 && arena->lent_bytes() == 0);
}

void refuses_the_impossible() {
  const auto arena = std::make_shared<Arena>(mib);
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const std::size_t size : {most, most - 4096, most / 2, most / 2 - mib, most / 4}) {
    bool refused = false;
    try {
      (void)arena->take(size);
    } catch (const std::bad_alloc&) {
      refused = true;
    }
    CHECK(refused && arena->lent_bytes() == 0);
  }
}

void keeps_within_bounds() {
  const auto arena = std::make_shared<Arena>(3 * mib);
  penstock::tests::Random random(1);
  std::vector<std::optional<Block>> blocks(50);
  for (int i = 0; i < 3000; ++i) {
    auto& slot = blocks[random() % blocks.size()];
    slot.reset();
    slot.emplace(arena->take(random() % (300 * 1024)));
    CHECK(arena->kept_bytes() <= 3 * mib);
  }
  blocks.clear();
  CHECK(arena->lent_bytes() == 0 && arena->kept_bytes() <= 3 * mib);
}

// What the user has does not count; what is kept goes at once if the bound falls.
void counts_what_is_ahead() {
  const auto arena = std::make_shared<Arena>(4 * mib);
  std::optional<Block> first = arena->take(mib);
  const Block second = arena->take(mib);
  CHECK(first->capacity() == mib && arena->ahead_bytes() == 2 * mib);
  CHECK(arena->has_room({mib}, mib) && !arena->has_room({2 * mib}, 1));
  arena->hand_over(first->data());
  arena->hand_over(first->data());
  arena->hand_over(nullptr);
  CHECK(arena->ahead_bytes() == mib && arena->lent_bytes() == 2 * mib);
  first.reset();
  CHECK(arena->kept_bytes() == mib && arena->ahead_bytes() == mib);
  arena->set_bytes_max(mib);
  CHECK(arena->kept_bytes() == 0 && arena->lent_bytes() == mib && !arena->has_room({1}, 0));
}

// A loop holds one block while it gets the next; what is collected beyond these does not count.
void counts_what_a_loop_holds() {
  const auto arena = std::make_shared<Arena>(4 * mib);
  std::vector<Block> users;
  for (int i = 0; i < 5; ++i) {
    users.push_back(arena->take(mib));
    CHECK(arena->has_room({3 * mib}, 0) == (i < 2));
    arena->hand_over(users.back().data());
    CHECK(arena->has_room({4 * mib}, 0) == (i == 0) && arena->has_room({3 * mib}, 0));
  }
  while (users.size() > 1) users.pop_back();
  CHECK(arena->has_room({4 * mib}, 0) && arena->lent_bytes() == mib);
}

void outlived_by_blocks() {
  auto arena = std::make_shared<Arena>(64 * mib);
  const Block block = arena->take(mib);
  const std::weak_ptr<Arena> watched = arena;
  arena.reset();
  CHECK(!watched.expired());
  std::memset(block.data(), 1, mib);
}

void many_threads() {
  const auto arena = std::make_shared<Arena>(8 * mib);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&arena, t] {
      penstock::tests::Random random(t);
      for (int i = 0; i < 300; ++i) {
        const std::size_t size = 1 + random() % mib;
        const Block block = arena->take(size);
        std::memset(block.data(), static_cast<int>(t), size);
        CHECK(block.data()[0] == static_cast<std::byte>(t));
        CHECK(block.data()[size - 1] == static_cast<std::byte>(t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(arena->lent_bytes() == 0 && arena->kept_bytes() <= 8 * mib);
}

void works_after_fork() {
  const auto arena = std::make_shared<Arena>(8 * mib);
  std::optional<Block> block = arena->take(mib);
  (void)arena->take(mib);
  const pid_t child = ::fork();
  if (child == 0) {
    block.reset();
    const Block own = arena->take(mib);
    std::memset(own.data(), 1, mib);
    ::_exit(0);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child && status == 0);
  block.reset();
  CHECK(arena->lent_bytes() == 0);
}

}  // namespace

int main() {
  recycles();
  prepares();
  aligned();
  refuses_the_impossible();
  keeps_within_bounds();
  counts_what_is_ahead();
  counts_what_a_loop_holds();
  outlived_by_blocks();
  works_after_fork();
  many_threads();
}
