// Readers: the three ways of reading runs. Each belongs to one thread, except the mapped reader,
// which has no state.
#pragma once

#include <cstddef>
#include <memory>

#include "engine/checked_files.hpp"
#include "engine/ticket.hpp"

namespace penstock {

class Reader {
 public:
  virtual ~Reader() = default;
  // Read the runs [first, last) of a ticket. May return while some are in flight.
  virtual void read(const TicketPtr& ticket, std::size_t first, std::size_t last,
                    Access access) = 0;
  // True while runs are in flight; progress() waits until at least one of them moves.
  virtual bool is_busy() const { return false; }
  virtual void progress() {}
};

std::unique_ptr<Reader> make_pread_reader(CheckedFiles& files, RunObserver& observer);
std::unique_ptr<Reader> make_mapped_reader(CheckedFiles& files, RunObserver& observer);
// Null if the kernel refuses a ring; `error` is then its errno.
std::unique_ptr<Reader> make_uring_reader(CheckedFiles& files, RunObserver& observer, int& error);

}  // namespace penstock
