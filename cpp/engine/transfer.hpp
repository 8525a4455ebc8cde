// One run being read: the next call of the kernel, and the destinations of its bytes.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/checked_files.hpp"
#include "ground/limits.hpp"
#include "engine/ticket.hpp"

namespace penstock {

// Page-aligned memory for reads that cannot go straight to their destination. Kept from one
// transfer to the next; grows to the largest piece asked for.
class Bounce {
 public:
  static constexpr std::size_t size_max = limits::run_bytes_max + 2 * alignment_max;
  bool reserve(std::size_t bytes);  // at most size_max; false if there is no memory
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

// Life: begin -> (prepare_read -> accept)* until accept returns true -> finish. Buffered runs of
// one extent and aligned direct ones go straight to the destination; buffered runs of several
// extents scatter by iovec, gaps into a sink; other direct runs go through the bounce buffer. If a
// run of several extents meets an error, its missing extents are read one by one, so that the error
// is reported only for the extents that it concerns.
class Transfer {
 public:
  struct ReadCall {
    std::int64_t offset;
    const iovec* parts;
    unsigned count;
  };

  void begin(CheckedFiles& files, TicketPtr ticket, std::size_t run, Access access, bool may_wait = true);
  bool is_ready() const { return error_ == 0; }  // if not, it has failed: finish it
  bool lacks_descriptor() const;  // it has failed, because the process may open no more files
  int fd() const { return opened_.fd; }

  ReadCall prepare_read();
  // Call preadv and wait. True when the run has ended.
  bool read();
  // Take the result of the system call: bytes, or -errno. True when the run has ended.
  bool accept(std::int64_t result);
  // Report the missing extents, release the file, and return the ticket to be counted down. Every
  // run ends after a bounded number of calls.
  TicketPtr finish(CheckedFiles& files);

 private:
  bool begin_parts();
  bool is_straight() const;
  bool is_at_file_end() const;
  bool handle_error(int error);
  bool advance_extent();
  std::int64_t bounce_bytes(std::int64_t from) const;
  void gather_parts();
  void scatter(std::int64_t begin, std::int64_t bytes);

  TicketPtr ticket_;
  std::size_t run_ = 0;
  Opened opened_;
  std::int64_t position_ = 0;  // all bytes of the run before this file offset have arrived
  std::int64_t end_ = 0;
  std::int64_t goal_ = 0;   // of the calls: end_, or the end of extent current_ if read one by one
  std::int64_t call_offset_ = 0;  // of the latest call
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
