// Replays: what operations give, when they begin, and many threads on the same few files.
#include "replay/replay.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/check.hpp"

using penstock::OperationKind;
using penstock::OperationColumns;
using penstock::OperationResults;
using penstock::monotonic_ns;
using penstock::Replay;

namespace {

constexpr std::int64_t file_bytes = 40'000;

// Two files of 40,000 bytes, and the name of one that is not there.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/penstock-replay-XXXXXX";
    CHECK(::mkdtemp(name) != nullptr);
    path_ = name;
    for (const char* file : {"/a", "/b"}) {
      std::ofstream(path_ + file) << std::string(file_bytes, 'x');
    }
    for (const char* file : {"/a", "/b", "/absent"}) {
      names_ += path_ + file;
      ends_.push_back(static_cast<std::int64_t>(names_.size()));
    }
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  const std::string& names() const { return names_; }
  const std::vector<std::int64_t>& ends() const { return ends_; }

 private:
  std::string path_, names_;
  std::vector<std::int64_t> ends_;
};

struct Acts {
  std::vector<std::uint8_t> kind;
  std::vector<std::uint32_t> file;
  std::vector<std::int64_t> offset, length, think_ns, result, late_ns, duration_ns;

  void add(OperationKind act, std::uint32_t of, std::int64_t at = 0, std::int64_t bytes = 0,
           std::int64_t think = 0) {
    kind.push_back(static_cast<std::uint8_t>(act));
    file.push_back(of);
    offset.push_back(at);
    length.push_back(bytes);
    think_ns.push_back(think);
    result.push_back(99);
    late_ns.push_back(99);
    duration_ns.push_back(-1);
  }

  std::size_t perform(Replay& replay, bool paced, std::int64_t& due_ns) {
    const OperationColumns acts{kind, file, offset, length, think_ns};
    const OperationResults results{result, late_ns, duration_ns};
    return replay.perform(acts, paced, due_ns, results);
  }
};

int open_descriptors() {
  int count = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += each.is_symlink();
  }
  return count;
}

void gives_what_the_system_gives() {
  const Folder folder;
  const int before = open_descriptors();
  {
    Replay replay(folder.names(), folder.ends(), 10);
    Acts acts;
    acts.add(OperationKind::open, 0);
    acts.add(OperationKind::read, 0, 100, 200);
    acts.add(OperationKind::read, 0, file_bytes - 10, 200);
    acts.add(OperationKind::read, 0, file_bytes + 10, 200);
    acts.add(OperationKind::read, 0, 0, 0);
    acts.add(OperationKind::read, 0, 0, std::int64_t{1} << 30);  // longer than any memory that it takes
    acts.add(OperationKind::close, 0);
    acts.add(OperationKind::close, 0);  // once more than was opened
    acts.add(OperationKind::open, 2);
    acts.add(OperationKind::stat, 1);
    acts.add(OperationKind::stat, 2);
    acts.add(OperationKind::read, 1, 0, 7);  // of a file whose opening nobody saw
    acts.add(OperationKind::read, 2, 0, 7);
    acts.add(OperationKind::map, 2, 0, 7);
    std::int64_t due_ns = monotonic_ns();
    CHECK(acts.perform(replay, false, due_ns) == acts.kind.size());
    const std::vector<std::int64_t> expected{0, 200, 10, 0, 0, file_bytes, 0, 0, -ENOENT,
                                             0, -ENOENT, 7, -ENOENT, 0};
    CHECK(acts.result == expected);
    for (const std::int64_t late : acts.late_ns) CHECK(late == 0);
    for (const std::int64_t took : acts.duration_ns) CHECK(took >= 0);
    CHECK(replay.unrecorded_opens() == 2);
    CHECK(open_descriptors() == before + 1);  // file 1 is kept
  }
  CHECK(open_descriptors() == before);
}

void keeps_no_more_open_than_it_may() {
  const Folder folder;
  const int before = open_descriptors();
  Replay replay(folder.names(), folder.ends(), 0);
  Acts acts;
  for (int i = 0; i < 10; ++i) acts.add(OperationKind::read, 1, 0, 7);
  std::int64_t due_ns = 0;
  CHECK(acts.perform(replay, false, due_ns) == 10);
  CHECK(replay.unrecorded_opens() == 10 && open_descriptors() == before);
}

void begins_when_it_is_due() {
  const Folder folder;
  Replay replay(folder.names(), folder.ends(), 10);
  Acts acts;
  for (int i = 0; i < 5; ++i) acts.add(OperationKind::read, 0, 0, 100, 2'000'000);
  const std::int64_t began_ns = monotonic_ns();
  std::int64_t due_ns = began_ns;
  CHECK(acts.perform(replay, true, due_ns) == 5);
  std::int64_t sum = began_ns;
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(acts.late_ns[i] >= 0);
    sum += acts.think_ns[i] + acts.duration_ns[i];
  }
  CHECK(due_ns == sum && monotonic_ns() >= due_ns);
}

void stops_while_it_waits() {
  const Folder folder;
  Replay replay(folder.names(), folder.ends(), 10);
  Acts acts;
  acts.add(OperationKind::read, 0, 0, 100);
  acts.add(OperationKind::read, 0, 0, 100, std::int64_t{3600} * 1'000'000'000);
  std::thread stopping([&] { replay.stop(); });
  std::int64_t due_ns = monotonic_ns();
  CHECK(acts.perform(replay, true, due_ns) < 2);
  stopping.join();
}

void refuses_what_cannot_be() {
  const Folder folder;
  const std::vector<std::int64_t> wrong{5, 3, 4};
  int refused = 0;
  try {
    Replay replay(folder.names(), wrong, 10);
  } catch (const std::invalid_argument&) {
    ++refused;
  }
  Replay replay(folder.names(), folder.ends(), 10);
  const auto tried = [&](Acts acts) {
    std::int64_t due_ns = 0;
    try {
      (void)acts.perform(replay, false, due_ns);
    } catch (const std::invalid_argument&) {
      ++refused;
    }
  };
  Acts acts;
  acts.add(OperationKind::read, 3);
  tried(acts);
  acts.file[0] = 0;
  acts.kind[0] = 6;
  tried(acts);
  acts.kind[0] = 0;
  acts.offset[0] = -1;
  tried(acts);
  acts.offset[0] = 0;
  acts.length[0] = -1;
  tried(acts);
  acts.length[0] = 0;
  acts.think_ns.clear();
  tried(acts);
  CHECK(refused == 6);
}

// Each opens, reads and closes the same files, while others do.
void many_threads_share_files() {
  const Folder folder;
  const int before = open_descriptors();
  {
    Replay replay(folder.names(), folder.ends(), 1);
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number) {
      threads.emplace_back([&] {
        for (int round = 0; round < 20; ++round) {
          Acts acts;
          for (const std::uint32_t file : {0u, 1u}) {
            acts.add(OperationKind::open, file);
            for (int i = 0; i < 5; ++i) acts.add(OperationKind::read, file, 100 * i, 1000);
            acts.add(OperationKind::close, file);
            acts.add(OperationKind::read, file, 0, 10);
          }
          std::int64_t due_ns = 0;
          CHECK(acts.perform(replay, false, due_ns) == acts.kind.size());
          for (std::size_t i = 0; i < acts.kind.size(); ++i) {
            CHECK(acts.result[i] == acts.length[i]);
          }
        }
      });
    }
    for (std::thread& each : threads) each.join();
  }
  CHECK(open_descriptors() == before);
}

}  // namespace

int main() {
  gives_what_the_system_gives();
  keeps_no_more_open_than_it_may();
  begins_when_it_is_due();
  stops_while_it_waits();
  refuses_what_cannot_be();
  many_threads_share_files();
  return 0;
}
