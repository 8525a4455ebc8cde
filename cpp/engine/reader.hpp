// Readers: the three ways of reading runs. Each belongs to one thread, except the mapped reader,
// which has no state.
#pragma once

#include <cstddef>
#include <memory>

#include "engine/files.hpp"
#include "engine/ticket.hpp"

namespace penstock {

class Reader {
 public:
  virtual ~Reader() = default;
  // Reads the runs [first, last) of a ticket. May return while some are in flight.
  virtual void read(const TicketPtr& ticket, std::size_t first, std::size_t last,
                    Access access) = 0;
  // Whether runs are in flight, and a wait for at least one of them to move.
  virtual bool busy() const { return false; }
  virtual void progress() {}
};

std::unique_ptr<Reader> make_pread_reader(Files& files, Completions& completions);
std::unique_ptr<Reader> make_mapped_reader(Files& files, Completions& completions);
// Null where the kernel refuses a ring; `error` then says why.
std::unique_ptr<Reader> make_uring_reader(Files& files, Completions& completions, int& error);

}  // namespace penstock
