// Reads by preadv, one run at a time: works on every file system.
#include "engine/reader.hpp"
#include "engine/transfer.hpp"

namespace penstock {
namespace {

class PreadReader final : public Reader {
 public:
  PreadReader(Files& files, Completions& completions)
      : files_(files), completions_(completions) {}

  void read(const TicketPtr& ticket, std::size_t first, std::size_t last,
            Access access) override {
    for (std::size_t run = first; run < last; ++run) {
      transfer_.begin(files_, ticket, run, access);
      bool done = !transfer_.ready();
      while (!done) done = transfer_.read();
      transfer_.end(files_);
    }
    completions_.ended(ticket, last - first);
  }

 private:
  Files& files_;
  Completions& completions_;
  Transfer transfer_;
};

}  // namespace

std::unique_ptr<Reader> make_pread_reader(Files& files, Completions& completions) {
  return std::make_unique<PreadReader>(files, completions);
}

}  // namespace penstock
