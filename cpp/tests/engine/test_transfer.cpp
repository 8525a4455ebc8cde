// Requests and transfers: hostile columns are refused or safe, and any sequence of answers of the
// kernel ends, with right bytes.
#include "engine/transfer.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "tests/support/check.hpp"
#include "tests/support/dataset.hpp"
#include "engine/requests.hpp"

using namespace penstock;
using namespace penstock::tests;

namespace {

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

std::int64_t hostile(Random& random, std::int64_t mild) {
  switch (random() % 12) {
    case 0: return static_cast<std::int64_t>(random());
    case 1: return most - below(random, 5000);
    case 2: return -below(random, 5000);
    case 3: return std::int64_t{1} << below(random, 63);
    case 4: return std::numeric_limits<std::int64_t>::min() + below(random, 3);
    default: return below(random, mild);
  }
}

// Columns of any values and lengths: refused, or extents that lie in their buffers.
bool try_columns(Random& random) {
  const bool mild = random() % 3 != 0;
  const auto count = static_cast<std::size_t>(below(random, 12));
  const auto value = [&](std::int64_t bound) {
    return mild && random() % 40 != 0 ? below(random, bound) : hostile(random, bound);
  };
  const auto size = [&] { return random() % 30 == 0 ? random() % 14 : count; };
  std::vector<std::uint32_t> file(size()), buffer(size());
  std::vector<std::int64_t> offset(size()), length(size()), target(size()), runs{0};
  for (auto& each : file) each = static_cast<std::uint32_t>(value(2));
  for (auto& each : buffer) each = static_cast<std::uint32_t>(value(2));
  for (auto& each : offset) each = value(100'000);
  for (auto& each : length) each = value(60);
  for (auto& each : target) each = value(200);
  for (std::size_t i = 0; i < count; ++i) {
    if (mild) runs.push_back(static_cast<std::int64_t>(i + 1));
    else if (random() % 2 == 0) runs.push_back(value(static_cast<std::int64_t>(count) + 1));
  }
  if (random() % 10 == 0) runs.clear();
  std::vector<Bytes> memory{Bytes(300), Bytes(280)};
  const std::vector<std::span<std::byte>> buffers{memory[0], memory[1]};
  PlacedRequests placed;
  try {
    placed = place_requests({file, offset, length, buffer, target, runs}, buffers, 2);
  } catch (const std::invalid_argument&) {
    return false;
  }
  CHECK(placed.extents.size() == file.size() && placed.runs.back() == file.size());
  for (const Extent& extent : placed.extents) {
    CHECK(extent.file < 2 && extent.offset >= 0 && extent.length >= 0);
    CHECK(extent.offset <= most - extent.length);
    std::fill_n(extent.target, extent.length, std::byte{1});  // the sanitizer knows the bounds
  }
  return true;
}

void any_columns(Random& random) {
  int accepted = 0;
  for (int i = 0; i < 200'000; ++i) accepted += try_columns(random) ? 1 : 0;
  CHECK(accepted > 1000 && accepted < 199'000);
}

// One run over file 0, with guard bytes around the destinations.
struct Run {
  TicketPtr ticket = std::make_shared<Ticket>();
  Bytes memory;

  Run(Random& random, std::int64_t size) {
    std::int64_t at = below(random, size + 10);
    const std::int64_t count = random() % 2 == 0 ? 1 : 1 + below(random, 9);
    std::vector<std::int64_t> targets;
    std::int64_t filled = 1;
    if (random() % 4 == 0) at -= at % 4096;
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t length = below(random, random() % 5 == 0 ? 400'000 : 3000);
      if (count == 1 && random() % 2 == 0) length -= length % 4096;
      ticket->extents.push_back({at, length, nullptr, 0});
      targets.push_back(filled);
      filled += length + 1;
      at += length + below(random, 2) * below(random, 100'000);
    }
    ticket->runs = {0, ticket->extents.size()};
    memory.assign(static_cast<std::size_t>(filled), std::byte{0x5A});
    for (std::size_t i = 0; i < targets.size(); ++i) {
      ticket->extents[i].target = &memory[static_cast<std::size_t>(targets[i])];
    }
  }
};

// The kernel's part: what it would answer, cut short or failing now and then.
class Kernel {
 public:
  Kernel(Random& random, const Bytes& content, bool direct)
      : random_(random), content_(content), direct_(direct) {}

  std::int64_t answer(const Transfer::ReadCall& ask) {
    const auto size = static_cast<std::int64_t>(content_.size());
    std::int64_t room = 0;
    for (unsigned i = 0; i < ask.count; ++i) room += static_cast<std::int64_t>(ask.parts[i].iov_len);
    if (direct_) {
      CHECK(ask.offset % 512 == 0 && room % 512 == 0);
      for (unsigned i = 0; i < ask.count; ++i) {
        CHECK(reinterpret_cast<std::uintptr_t>(ask.parts[i].iov_base) % 512 == 0);
      }
    }
    if (random_() % 20 == 0) return -EINTR;
    if (random_() % 20 == 0) return -EAGAIN;
    std::int64_t there = std::clamp<std::int64_t>(size - ask.offset, 0, room);
    if (bad >= ask.offset && bad < ask.offset + room) {
      there = std::min(there, bad - ask.offset);
      if (direct_) there -= there % 512;
      if (there <= 0) return -EIO;
    }
    if (there > 1 && random_() % 3 == 0) there = 1 + below(random_, there);
    std::int64_t at = ask.offset;
    std::int64_t left = there;
    for (unsigned i = 0; i < ask.count && left > 0; ++i) {
      const auto bytes = std::min(left, static_cast<std::int64_t>(ask.parts[i].iov_len));
      std::memcpy(ask.parts[i].iov_base, content_.data() + at, static_cast<std::size_t>(bytes));
      at += bytes;
      left -= bytes;
    }
    return there;
  }

  std::int64_t bad = -1;  // the byte that cannot be read

 private:
  Random& random_;
  const Bytes& content_;
  bool direct_;
};

void check_run(const Run& run, const Bytes& content, std::int64_t bad) {
  const auto size = static_cast<std::int64_t>(content.size());
  std::vector<const Failure*> failures(run.ticket->extents.size());
  for (const Failure& failure : run.ticket->failures()) {
    CHECK(failures[failure.extent] == nullptr);
    failures[failure.extent] = &failure;
  }
  for (std::size_t i = 0; i < failures.size(); ++i) {
    const Extent& extent = run.ticket->extents[i];
    const std::int64_t there = std::clamp<std::int64_t>(size - extent.offset, 0, extent.length);
    // In whole blocks (direct), a bad byte spoils what shares its block.
    const bool struck = bad >= 0 && bad / 512 <= (extent.offset + extent.length) / 512 &&
                        bad / 512 >= extent.offset / 512;
    std::int64_t got = extent.length;
    if (failures[i] != nullptr) {
      got = failures[i]->got;
      CHECK(got < extent.length);
      CHECK(failures[i]->error != 0 ? struck : got == there);
    } else {
      CHECK(there == extent.length && !(bad >= extent.offset && bad < extent.offset + there));
    }
    CHECK(got == 0 || std::memcmp(extent.target, content.data() + extent.offset,
                                  static_cast<std::size_t>(got)) == 0);
    CHECK(extent.target[-1] == std::byte{0x5A} && extent.target[extent.length] == std::byte{0x5A});
  }
}

void any_answers(Random& random) {
  const Dataset data({random_bytes(random, 700'001)});
  CheckedFiles files(data.columns(), 10);
  Transfer transfer;
  for (int round = 0; round < 4000; ++round) {
    const Access access = round % 2 == 0 ? Access::buffered : Access::direct;
    Run run(random, 700'001);
    Kernel kernel(random, data.content(0), false);
    if (round % 4 >= 2) kernel.bad = below(random, 700'001);
    transfer.begin(files, run.ticket, 0, access);
    CHECK(transfer.is_ready());
    int asks = 0;
    bool done = false;
    while (!done) {
      const auto ask = transfer.prepare_read();
      done = transfer.accept(ask.count == 0 ? 0 : kernel.answer(ask));
      CHECK(++asks < 20'000);
    }
    CHECK(transfer.finish(files) == run.ticket);
    check_run(run, data.content(0), kernel.bad);
  }
}

// A kernel that refuses for ever is an error in the end.
void refused_for_ever(Random& random) {
  const Dataset data({random_bytes(random, 10'000)});
  CheckedFiles files(data.columns(), 10);
  for (const int error : {EINTR, EAGAIN}) {
    Bytes memory(200);
    const auto ticket = std::make_shared<Ticket>();
    ticket->extents = {{0, 100, memory.data(), 0}, {500, 100, memory.data() + 100, 0}};
    ticket->runs = {0, 2};
    Transfer transfer;
    transfer.begin(files, ticket, 0, Access::buffered);
    int asks = 0;
    do {
      transfer.prepare_read();
      CHECK(++asks < 10'000);
    } while (!transfer.accept(-error));
    transfer.finish(files);
    CHECK(ticket->failures().size() == 2 && ticket->failures()[1].error == error);
  }
}

// Offsets up to 2^63 - 1, and lengths of gigabytes, by the real kernel.
void ends_of_the_range(Random& random) {
  const Dataset data({random_bytes(random, 10'000)});
  CheckedFiles files(data.columns(), 10);
  for (const Access access : {Access::buffered, Access::direct}) {
    for (const std::int64_t offset : {most, most - 1, most - 511, most - 4096, most / 2, std::int64_t{1} << 40}) {
      for (const std::int64_t length : {0, 1, 100, 511, 4096}) {
        if (length > most - offset) continue;
        Bytes memory(4096);
        const auto ticket = std::make_shared<Ticket>();
        ticket->extents = {{offset, length, memory.data(), 0}};
        ticket->runs = {0, 1};
        Transfer transfer;
        transfer.begin(files, ticket, 0, access);
        while (!transfer.read()) {
        }
        transfer.finish(files);
        CHECK(ticket->failures().size() == (length > 0 ? 1u : 0u));
        CHECK(length == 0 || ticket->failures()[0].got == 0);
      }
    }
  }
}

// Names and columns that no index should have.
void hostile_tables() {
  const std::vector<std::int64_t> size(3, 1), ends{5, 2, 1 << 20};
  CheckedFiles files({"/", "names", ends, size, size}, 10);
  for (std::uint32_t i = 0; i < 3; ++i) CHECK(files.open(i, Access::direct).error == ENOENT);
  const std::string long_name(5000, 'x');
  const std::vector<std::int64_t> long_end{5000}, one{1};
  CHECK(CheckedFiles({"/", long_name, long_end, one, one}, 0).open(0, Access::buffered).error == ENAMETOOLONG);
  bool refused = false;
  try {
    CheckedFiles({"/", "names", ends, one, size}, 10);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

// A pipe in the place of a file is not waited for.
void pipe_instead_of_file(Random& random) {
  const Dataset data({random_bytes(random, 10)});
  ::unlink(data.path(0).c_str());
  CHECK(::mkfifo(data.path(0).c_str(), 0600) == 0);
  CheckedFiles files(data.columns(), 10);
  CHECK(files.open(0, Access::buffered).error == ESTALE);
}

}  // namespace

int main() {
  Random random(20261107);
  any_columns(random);
  any_answers(random);
  refused_for_ever(random);
  ends_of_the_range(random);
  hostile_tables();
  pipe_instead_of_file(random);
}
