// The allowance of open files: exact at every moment, whoever reads, and room comes back.
#include "engine/open_files.hpp"

#include <limits.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/checked_files.hpp"
#include "tests/support/check.hpp"
#include "tests/support/dataset.hpp"

using namespace penstock;
using namespace penstock::tests;

namespace {

constexpr int descriptors = 60;
constexpr std::ptrdiff_t allowance = descriptors / 2;
constexpr std::ptrdiff_t lent = allowance / 5;
constexpr std::size_t file_count = 40;

// Files of the dataset that are open. It opens nothing itself, and looks in ascending order: as the
// system gives the lowest free number, a file that moves meanwhile is not seen twice.
std::ptrdiff_t count_open(const Dataset& data) {
  const std::string folder = data.columns().root + "/";
  std::ptrdiff_t count = 0;
  for (int fd = 0; fd < descriptors; ++fd) {
    char target[PATH_MAX];
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t length = ::readlink(link.c_str(), target, sizeof target);
    if (length < static_cast<ssize_t>(folder.size())) continue;
    count += std::memcmp(target, folder.data(), folder.size()) == 0 ? 1 : 0;
  }
  return count;
}

std::ptrdiff_t counted() { return OpenFiles::of_process().open_count(); }

void check_bytes(const Dataset& data, std::uint32_t file, const Opened& opened) {
  Bytes bytes(data.content(file).size());
  CHECK(::pread(opened.fd, bytes.data(), bytes.size(), 0) == std::ssize(bytes));
  CHECK(bytes == data.content(file));
}

// A reader takes kept room for any number of files, and the lent part of the allowance for none but
// its first; who may wait gets room as soon as a lent file is released.
void room_is_divided(const Dataset& data, std::size_t keep_max) {
  CheckedFiles files(data.columns(), keep_max);
  std::vector<Opened> held;
  while (std::ssize(held) < allowance - lent) {
    held.push_back(files.open(static_cast<std::uint32_t>(held.size()), Access::buffered, false));
    CHECK(held.back().fd >= 0 && held.back().owned == (keep_max == 0));
  }
  CHECK(files.open(file_count - 1, Access::buffered, false).error == EMFILE);
  std::vector<Opened> firsts;
  while (std::ssize(firsts) < lent) {
    firsts.push_back(files.open(file_count - 1, Access::buffered));
    CHECK(firsts.back().owned);
    check_bytes(data, file_count - 1, firsts.back());
  }
  CHECK(count_open(data) == allowance && counted() == allowance);
  std::thread waiting([&] {
    Opened opened = files.open(file_count - 1, Access::buffered);
    check_bytes(data, file_count - 1, opened);
    files.release(opened);
  });
  files.release(firsts.back());
  waiting.join();
  firsts.pop_back();
  for (auto* each : {&held, &firsts}) {
    for (Opened& opened : *each) files.release(opened);
  }
  files.close();
  CHECK(count_open(data) == 0 && counted() == 0);
}

// Files that cannot be opened, in whatever way, take no room.
void refusals_return_room(Random& random) {
  const Dataset data({random_bytes(random, 100), random_bytes(random, 100)});
  ::unlink(data.path(0).c_str());
  data.write(1, random_bytes(random, 101));
  const std::string name = "status";  // no file of /proc can be opened with O_DIRECT
  const std::vector<std::int64_t> end{std::ssize(name)}, zero{0};
  for (const std::size_t keep_max : {0, 10}) {
    for (int i = 0; i < descriptors; ++i) {
      CheckedFiles files(data.columns(), keep_max);
      CHECK(files.open(0, Access::buffered).error == ENOENT);
      CHECK(files.open(1, Access::buffered).error == ESTALE);
      CHECK(files.map(0).error == ENOENT);
      CheckedFiles undirected({"/proc/self", name, end, zero, zero}, keep_max);
      CHECK(undirected.open(0, Access::direct).error == ESTALE);
      CHECK(counted() == 0);
    }
  }
}

// Read as the readers do: a thread waits for its first file only, and for others does without.
void read_some(CheckedFiles& files, const Dataset& data, Random& random) {
  std::vector<Opened> held;
  std::vector<Mapped> maps;
  for (std::int64_t left = 1 + below(random, 12); left > 0; --left) {
    const bool is_first = held.empty() && maps.empty();
    const auto file = static_cast<std::uint32_t>(below(random, file_count));
    const Access access = random() % 3 == 0 ? Access::direct : Access::buffered;
    const bool by_map = random() % 3 == 0;
    const Mapped mapped = by_map ? files.map(file, is_first) : Mapped{};
    const Opened opened = by_map ? Opened{} : files.open(file, access, is_first);
    if (const int error = by_map ? mapped.error : opened.error; error != 0) {
      CHECK(error == EMFILE && !is_first);
      break;
    }
    if (by_map) {
      CHECK(std::memcmp(mapped.data, data.content(file).data(), mapped.size) == 0);
      maps.push_back(mapped);
    } else {
      if (!opened.direct) check_bytes(data, file, opened);
      held.push_back(opened);
    }
  }
  for (Mapped& mapped : maps) files.release(mapped);
  for (Opened& opened : held) files.release(opened);
}

// More threads than files may be open, on tables that keep their files and one that does not.
void many_threads_on_few_files(const Dataset& data) {
  constexpr std::size_t thread_count = 2 * allowance;
  std::vector<std::unique_ptr<CheckedFiles>> tables;
  for (const std::size_t keep_max : {file_count, file_count, std::size_t{0}}) {
    tables.push_back(std::make_unique<CheckedFiles>(data.columns(), keep_max));
  }
  std::atomic<std::size_t> reading{thread_count};
  std::vector<std::thread> threads;
  for (std::size_t number = 0; number < thread_count; ++number) {
    threads.emplace_back([&, number] {
      Random random(number);
      for (int turn = 0; turn < 40; ++turn) {
        read_some(*tables[static_cast<std::size_t>(below(random, 3))], data, random);
      }
      --reading;
    });
  }
  std::ptrdiff_t most = 0;
  while (reading > 0) {
    const std::ptrdiff_t count = count_open(data);
    CHECK(count <= allowance);
    most = std::max(most, count);
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(most >= allowance / 2);
  CHECK(count_open(data) == counted());
  tables.clear();
  CHECK(count_open(data) == 0 && counted() == 0);
}

}  // namespace

int main() {
  rlimit limit{};
  CHECK(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = descriptors;
  CHECK(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  Random random(20261122);
  std::vector<Bytes> contents;
  for (std::size_t i = 0; i < file_count; ++i) contents.push_back(random_bytes(random, 5000 + i));
  const Dataset data(contents);
  room_is_divided(data, 0);
  room_is_divided(data, file_count);
  refusals_return_room(random);
  many_threads_on_few_files(data);
}
