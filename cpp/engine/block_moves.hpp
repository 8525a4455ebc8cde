// Reads or writes of many blocks of one file at once, from one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// A block of a file and its memory; `done` and `error` are the outcome.
struct BlockMove {
  std::int64_t offset = 0;
  std::span<std::byte> memory;
  std::int64_t done = 0;  // bytes that moved, from the start
  int error = 0;          // errno that ended it
};

// Move all blocks, and return when none is on its way any more. With a ring where the kernel grants
// one, up to `limits::ring_entries` at a time; else one after the other. A block that ends early, at
// the end of the file or of a full disk, has no error.
void move_blocks(int file, bool writes, std::span<BlockMove> blocks);

}  // namespace penstock
