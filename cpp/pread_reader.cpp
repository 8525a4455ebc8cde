// Reads by preadv, one run at a time: works on every file system.
#include <sys/uio.h>

#include <cerrno>

#include "reader.hpp"
#include "transfer.hpp"

namespace penstock {
namespace {

class PreadReader final : public Reader {
 public:
  PreadReader(Files& files, Completions& completions, Access access)
      : files_(files), completions_(completions), access_(access) {}

  void read(const TicketPtr& ticket, std::size_t first, std::size_t last) override {
    for (std::size_t run = first; run < last; ++run) {
      transfer_.begin(files_, ticket, run, access_);
      bool done = !transfer_.ready();
      while (!done) {
        const auto ask = transfer_.ask();
        const auto result = ask.count == 0 ? 0
                                           : ::preadv(transfer_.fd(), ask.parts,
                                                      static_cast<int>(ask.count), ask.offset);
        done = transfer_.arrived(result < 0 ? -errno : result);
      }
      transfer_.end(files_);
    }
    completions_.ended(ticket, last - first);
  }

 private:
  Files& files_;
  Completions& completions_;
  Access access_;
  Transfer transfer_;
};

}  // namespace

std::unique_ptr<Reader> make_pread_reader(Files& files, Completions& completions, Access access) {
  return std::make_unique<PreadReader>(files, completions, access);
}

}  // namespace penstock
