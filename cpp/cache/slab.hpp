// Memory that the processes of a host share: slots that are filled once, by one process each.
//
// A slab is a memfd: a header, a word for each slot, and data. A slot is empty, claimed by a process
// that is about to fill it, or ready at an offset; ready slots stay. All of it is changed by
// compare-and-swap, so a process that is killed at any point leaves nothing locked: its claims name
// it, and whoever finds it dead takes them over. Without a name in any file system, the memory is
// gone with the last process that has it.
//
// What a dead process had allocated is not given out again: reads that it began may still land
// there. It is counted, with what is being filled just now, as allocated and not published.
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
  using Identity = std::array<std::byte, 16>;  // of the data: who attaches says what it expects

  // Where the bytes lie that offsets speak of: in the slab, or in a file, which somebody else knows.
  enum class Data : std::uint8_t { inside, outside };

  struct Shape {
    std::uint64_t slots = 0;
    std::uint64_t data_bytes = 0;
    std::uint64_t alignment = 64;  // of what is allocated: a power of two, up to a page
    Data data = Data::inside;
  };

  enum class Claim : std::uint8_t {
    ready = 0,
    mine = 1,  // from now on: to be published or abandoned
    busy = 2,  // another claim stands, or the slot's word is damaged
  };

  struct Counters {
    std::uint64_t ready;            // slots
    std::uint64_t allocated_bytes;  // with what alignment adds
    std::uint64_t published_bytes;  // likewise
    std::uint64_t taken_over;       // claims of dead processes
    std::uint64_t dropped;          // slots that were ready and found damaged
  };

  // Throw std::system_error where the system refuses, std::invalid_argument where a shape cannot be
  // or what is attached is not the slab that is expected. A slab is attached through any process
  // that has it: by its pid and its descriptor there.
  static std::shared_ptr<Slab> create(const Shape& shape, const Identity& identity);
  static std::shared_ptr<Slab> attach(pid_t pid, int fd, const Identity& identity);

  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  const Shape& shape() const { return shape_; }
  int fd() const { return fd_; }
  std::span<std::byte> data() const { return data_; }
  Counters counters() const;

  // Whether this is a copy in a forked child, which has no claims; claim refuses there.
  bool inherited() const;

  // All below are safe on any thread. Slots out of range throw std::out_of_range before anything is
  // changed.

  void claim(std::span<const std::int64_t> slots, std::span<Claim> found);

  // Where ready slots lie; -1 for others.
  void offsets(std::span<const std::int64_t> slots, std::span<std::int64_t> found) const;

  // Room that nobody else is given; -1 where there is no more.
  void allocate(std::span<const std::int64_t> lengths, std::span<std::int64_t> found);

  // Which claims are held here.
  void holds(std::span<const std::int64_t> slots, std::span<bool> found);

  // Makes slots of this claimer ready. `done` is false where the claim was not held.
  void publish(std::span<const std::int64_t> slots, std::span<const std::int64_t> at,
               std::span<const std::int64_t> lengths, std::span<bool> done);

  // Gives claims back; slots that are not held are passed over.
  void abandon(std::span<const std::int64_t> slots);
  void abandon_all();

  // Makes slots empty that were found damaged where they lie; they may be claimed again, and what
  // lay there is not given out again.
  void drop(std::span<const std::int64_t> slots, std::span<const std::int64_t> at);

  // From the data to `out`, see gather.hpp.
  void gather(std::span<const std::int64_t> at, std::span<const std::int64_t> lengths,
              std::span<const std::int64_t> targets, std::span<std::byte> out) const;

  // Takes all of the memory from the system now.
  void populate() const;

 private:
  Slab(int fd, const Shape& shape, std::byte* region, std::uint64_t me);
  void check(std::span<const std::int64_t> slots) const;
  std::uint64_t& word(std::int64_t slot) const { return table_[slot]; }
  std::uint64_t rounded(std::uint64_t bytes) const {
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
