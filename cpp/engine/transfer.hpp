// One run on its way: what to ask the kernel for next, and where the bytes that come go.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/files.hpp"
#include "ground/limits.hpp"
#include "engine/ticket.hpp"

namespace penstock {

// Page-aligned memory for reads that cannot go straight to their destination. Kept from one
// transfer to the next; grows to the largest piece asked for.
class Bounce {
 public:
  static constexpr std::size_t size_max = limits::run_bytes_max + 2 * alignment_max;
  bool reserve(std::size_t bytes);  // at most size_max; false where there is no memory
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

// Life: begin -> (ask -> arrived)* until arrived says done, or failed. Buffered runs of one extent
// and aligned direct ones go straight to the destination; buffered runs of several extents scatter
// by iovec, gaps into a sink; other direct runs go through the bounce buffer. Where a run of
// several extents meets an error, the extents that are missing are read one by one, so that the
// error is reported of those alone that it concerns.
class Transfer {
 public:
  struct Ask {
    std::int64_t offset;
    const iovec* parts;
    unsigned count;
  };

  void begin(Files& files, TicketPtr ticket, std::size_t run, Access access);
  bool ready() const { return error_ == 0; }  // else it has failed already: end it
  int fd() const { return opened_.fd; }

  Ask ask();
  // Asks the kernel by preadv, and waits. True when the run has ended.
  bool read();
  // `result` is the system call's: bytes, or -errno. True when the run has ended.
  bool arrived(std::int64_t result);
  // Reports what is missing and lets go of the file. The ticket is returned to be counted down.
  // Whatever a run has met, its end is reached by a bounded number of asks.
  TicketPtr end(Files& files);

 private:
  bool begin_parts();
  bool straight() const;
  bool ends_at_position() const;
  bool failed(int error);
  bool next_extent();
  std::int64_t bounce_bytes(std::int64_t from) const;
  void gather_parts();
  void scatter(std::int64_t begin, std::int64_t bytes);

  TicketPtr ticket_;
  std::size_t run_ = 0;
  Opened opened_;
  std::int64_t position_ = 0;  // everything of the run before this file offset has arrived
  std::int64_t end_ = 0;
  std::int64_t goal_ = 0;   // of the asks: end_, or that of extent current_ where read one by one
  std::int64_t asked_ = 0;  // offset of the latest ask
  std::size_t alignment_ = 0;
  std::size_t current_ = 0;  // extent of the run
  unsigned refusals_ = 0;    // in a row
  int error_ = 0;
  bool bounced_ = false;
  bool one_by_one_ = false;
  Bounce bounce_;
  std::vector<iovec> parts_;
};

}  // namespace penstock
