// Reads by preadv, one run at a time: works on every file system.
#include "engine/reader.hpp"
#include "engine/transfer.hpp"

namespace penstock {
namespace {

class PreadReader final : public Reader {
 public:
  PreadReader(CheckedFiles& files, RunObserver& observer)
      : files_(files), observer_(observer) {}

  void read(const TicketPtr& ticket, std::size_t first, std::size_t last,
            Access access) override {
    for (std::size_t run = first; run < last; ++run) {
      transfer_.begin(files_, ticket, run, access);
      bool done = !transfer_.is_ready();
      while (!done) done = transfer_.read();
      transfer_.finish(files_);
    }
    observer_.finish_runs(ticket, last - first);
  }

 private:
  CheckedFiles& files_;
  RunObserver& observer_;
  Transfer transfer_;
};

}  // namespace

std::unique_ptr<Reader> make_pread_reader(CheckedFiles& files, RunObserver& observer) {
  return std::make_unique<PreadReader>(files, observer);
}

}  // namespace penstock
