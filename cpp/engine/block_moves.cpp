#include "engine/block_moves.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "engine/ring.hpp"
#include "ground/forks.hpp"
#include "ground/limits.hpp"

namespace penstock {
namespace {

constexpr std::int64_t page_bytes = 4096;

// Note what one call moved. True if there is more to move: direct access goes on at pages only.
bool accept(BlockMove& block, std::int64_t result) {
  if (result < 0) {
    block.error = static_cast<int>(-result);
    return false;
  }
  block.done += result;
  const bool is_short = block.done < static_cast<std::int64_t>(block.memory.size());
  return is_short && result > 0 && block.done % page_bytes == 0;
}

void move_by_call(int file, bool writes, BlockMove& block) {
  std::int64_t result = 0;
  do {
    const auto rest = block.memory.subspan(static_cast<std::size_t>(block.done));
    const std::int64_t at = block.offset + block.done;
    do {
      result = writes ? ::pwrite(file, rest.data(), rest.size(), at)
                      : ::pread(file, rest.data(), rest.size(), at);
    } while (result < 0 && errno == EINTR);
  } while (accept(block, result < 0 ? -errno : result));
}

// Hand over what is queued, and wait for one that ends.
void submit(Ring& ring, int file, bool writes, std::span<BlockMove> blocks,
            std::size_t& on_their_way) {
  const int error = ring.enter(1);
  if (error == 0) return;
  if (on_their_way == ring.queued()) {  // the kernel has none
    while (ring.queued() > 0) {
      move_by_call(file, writes, blocks[static_cast<std::size_t>(ring.withdraw())]);
      --on_their_way;
    }
    return;
  }
  const bool short_of_room = error == EAGAIN || error == EBUSY;  // an event frees some
  if (short_of_room && ring.wait(1) == 0) return;
  // The ring is gone while the kernel may write to memory: there is no safe way to continue.
  std::fprintf(stderr, "penstock: io_uring_enter: %s\n", std::strerror(error));
  std::abort();
}

// The ring of this thread, made when it is first asked for; null if there is none, or if the thread
// is a forked copy of the one that made it.
Ring* find_ring() {
  struct Owned {
    int error = 0;
    std::unique_ptr<Ring> ring = Ring::make(limits::ring_entries, error);
    decltype(count_forks()) forks = count_forks();
  };
  thread_local const Owned owned;
  return owned.forks == count_forks() ? owned.ring.get() : nullptr;
}

}  // namespace

void move_blocks(int file, bool writes, std::span<BlockMove> blocks) {
  Ring* const ring = blocks.size() > 1 ? find_ring() : nullptr;
  if (ring == nullptr) {
    for (BlockMove& block : blocks) move_by_call(file, writes, block);
    return;
  }
  const std::uint8_t opcode = writes ? IORING_OP_WRITE : IORING_OP_READ;
  std::size_t next = 0;
  std::size_t on_their_way = 0;
  while (next < blocks.size() || on_their_way > 0) {
    for (; next < blocks.size() && on_their_way < limits::ring_entries; ++next, ++on_their_way) {
      const BlockMove& block = blocks[next];
      ring->push(opcode, file, block.memory.data(),
                 static_cast<std::uint32_t>(block.memory.size()), block.offset, next);
    }
    submit(*ring, file, writes, blocks, on_their_way);
    Event event{};
    while (ring->pop(event)) {
      --on_their_way;
      BlockMove& block = blocks[static_cast<std::size_t>(event.tag)];
      const bool is_again = event.result == -EINTR || event.result == -EAGAIN;
      if (is_again || accept(block, event.result)) move_by_call(file, writes, block);
    }
  }
}

}  // namespace penstock
