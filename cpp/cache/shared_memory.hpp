// Memory that the processes of a host share: slots that are filled once, by one process each.
//
// A slab is a memfd: a header, a word for each slot, and data. A slot is empty, or claimed by a
// process that is about to fill it, or ready at an offset; ready slots stay. Words change by
// compare-and-swap, so a process that is killed at any point leaves nothing locked: its claims name
// the process, and another process that finds it dead takes them over. The memory has no name in
// any file system, so it is freed with the last process that has it.
//
// Memory that a dead process had allocated is not given out again, because reads that it began may
// still write there. Such memory is counted as allocated and not published, like memory that is
// being filled.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_set>
#include <vector>

namespace penstock {

struct SlabHeader;

class Slab {
 public:
  using Identity = std::array<std::byte, 16>;  // of the data; attach() compares it

  // The memory that offsets refer to: the slab itself, or a file that the caller knows.
  enum class Data : std::uint8_t { inside, outside };

  struct Shape {
    std::uint64_t slots = 0;
    std::uint64_t data_bytes = 0;
    std::uint64_t alignment = 64;  // of allocations: a power of two, up to a page
    Data data = Data::inside;
  };

  enum class Claim : std::uint8_t {
    ready = 0,
    mine = 1,  // claimed by this call: publish or abandon it
    busy = 2,  // another claim stands, or the slot's word is damaged
  };

  struct Counters {
    std::uint64_t ready;            // slots
    std::uint64_t allocated_bytes;  // alignment included
    std::uint64_t published_bytes;  // likewise
    std::uint64_t taken_over;       // claims of dead processes
    std::uint64_t dropped;          // slots that were ready and found damaged
  };

  // Create a slab, or attach one through any process that has it, by that process's pid and
  // descriptor. Throw std::system_error if the system refuses, std::invalid_argument if the shape
  // is invalid or if the descriptor is not the expected slab.
  static std::shared_ptr<Slab> create(const Shape& shape, const Identity& identity);
  static std::shared_ptr<Slab> attach(pid_t pid, int fd, const Identity& identity);

  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  const Shape& shape() const { return shape_; }
  int fd() const { return fd_; }
  std::span<std::byte> data() const { return data_; }
  Counters counters() const;

  // True for a copy in a forked child, which has no claims and cannot claim.
  bool is_inherited() const;

  // All below are safe on any thread. Slots out of range throw std::out_of_range before anything is
  // changed.

  void claim(std::span<const std::int64_t> slots, std::span<Claim> found);

  // Offsets of ready slots; -1 for others.
  void find_offsets(std::span<const std::int64_t> slots, std::span<std::int64_t> found) const;

  // Allocate memory that is given out once; -1 if there is no more.
  void allocate(std::span<const std::int64_t> lengths, std::span<std::int64_t> found);

  // True for slots that are claimed through this object.
  void has_claims(std::span<const std::int64_t> slots, std::span<bool> found);

  // Make slots ready that are claimed through this object. `done` is false if the claim was not
  // held.
  void publish(std::span<const std::int64_t> slots, std::span<const std::int64_t> at,
               std::span<const std::int64_t> lengths, std::span<bool> done);

  // Give claims back; slots that are not claimed here are ignored.
  void abandon(std::span<const std::int64_t> slots);
  void abandon_all();

  // Make slots empty whose bytes were found damaged at these offsets. The slots may be claimed
  // again; their memory is not given out again.
  void drop(std::span<const std::int64_t> slots, std::span<const std::int64_t> at);

  // Copy extents of the data to `out`; see gather.hpp.
  void gather(std::span<const std::int64_t> at, std::span<const std::int64_t> lengths,
              std::span<const std::int64_t> targets, std::span<std::byte> out) const;

  // Take all of the memory from the system now.
  void populate() const;

 private:
  Slab(int fd, const Shape& shape, std::byte* region, std::uint64_t me);
  void check(std::span<const std::int64_t> slots) const;
  std::uint64_t& word(std::int64_t slot) const { return table_[slot]; }
  std::uint64_t round_up(std::uint64_t bytes) const {
    return (bytes + shape_.alignment - 1) & ~(shape_.alignment - 1);
  }

  const int fd_;
  const Shape shape_;
  const pid_t owner_;
  const std::uint64_t claimed_by_me_;
  std::byte* const region_;
  SlabHeader* const header_;
  std::uint64_t* const table_;
  const std::span<std::byte> data_;
  std::mutex mutex_;
  std::unordered_set<std::int64_t> claims_;
};

}  // namespace penstock
